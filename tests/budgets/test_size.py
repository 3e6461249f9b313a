"""The dimensions of a problem that a forward pass shows."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from slu import SLU
from slu.budgets import Size, Sketched, gradients, size_for, sketched_stream, verified
from slu.core.distances import Folding

TOKENS, WIDTH, HEADS, BATCH = 24, 16, 2, 6


class Attention(nn.Module):
    """One layer of attention, fused or written out, whose mean is classified."""

    def __init__(self, *, fused: bool = True) -> None:
        super().__init__()
        self.fused = fused
        self.attend, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x):
        query, key, value = self.attend(x).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.fused:
            attended = nn.functional.scaled_dot_product_attention(query, key, value)
        else:
            attended = (query @ key.mT).softmax(3) @ value
        return self.head(attended.transpose(1, 2).flatten(2).mean(1))


def shown(model, inputs):
    return size_for(SLU(model, "classification").network, None, inputs)


def test_what_attention_keeps_beyond_a_plain_call_is_the_products_of_all_pairs_of_tokens():
    """Beside the softmax some tensors of the length of the tokens, on either side."""
    attention = shown(Attention(), torch.randn(BATCH, TOKENS, WIDTH)).attention
    assert abs(attention - HEADS * TOKENS**2) <= 3 * TOKENS * WIDTH
    longer = shown(Attention(), torch.randn(BATCH, 8 * TOKENS, WIDTH)).attention
    assert longer == pytest.approx(HEADS * (8 * TOKENS) ** 2, rel=0.2)


@pytest.mark.parametrize("model", [Attention(fused=False), nn.Sequential(nn.Flatten(), nn.Linear(TOKENS * WIDTH, 3))])
def test_where_a_plain_call_fuses_nothing_no_more_is_kept(model):
    assert shown(model, torch.randn(BATCH, TOKENS, WIDTH)).attention == 0


def test_it_is_the_same_per_input_whatever_the_batch_and_the_model_is_not_changed():
    model = Attention().train()
    sizes = [shown(model, torch.randn(batch, TOKENS, WIDTH)).attention for batch in (2, 8)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)
    assert model.training and torch.backends.cuda.flash_sdp_enabled()


def test_what_attention_keeps_is_held_in_the_check_and_while_gradients_are_formed():
    plain = Size(10_000, outputs=1, batch=8, activations=500)
    size, sketch = replace(plain, attention=3000), Sketched(size=10, state=0, scratch=lambda rows: 0)
    held = 4 * 8 * 3000
    assert verified(size) == verified(plain) + held
    assert gradients(size) == gradients(plain) + held
    assert sketched_stream(2, 4, sketch, size, 1).fitting == sketched_stream(2, 4, sketch, plain, 1).fitting + held


def test_layers_are_those_of_the_batch_with_the_inputs_that_they_have():
    """Attention's own weights are three times as long as its inputs, and its last layer is never called."""
    model = nn.Sequential(nn.TransformerEncoderLayer(WIDTH, HEADS, 20, batch_first=True), nn.Linear(WIDTH, 3))
    size = shown(model, torch.randn(BATCH, TOKENS, WIDTH))
    assert size.layers == {"0.self_attn": WIDTH, "0.linear1": WIDTH, "0.linear2": 20, "1": WIDTH}
    expected = SLU(model, "classification").settings.layers
    assert set(expected.names) - set(size.layers) == {"0.self_attn.out_proj"}
    assert sum(expected.sizes) > sum(size.layers.values())


def test_a_plan_keeps_the_layers_that_a_fit_does():
    model = nn.Sequential(nn.TransformerEncoderLayer(WIDTH, HEADS, 20, batch_first=True), nn.Linear(WIDTH, 3))
    inputs = torch.randn(40, TOKENS, WIDTH)
    method = SLU(model, "classification", rank=4, sketch_size=50)
    fitted = method.fit([(inputs, torch.randint(3, (40, TOKENS)))], calibration=False).state.layers.folding
    size = size_for(method.network, None, inputs)
    made = Folding.within(size.layers, method.settings.layers.numbers, method.settings.seed)
    assert (made.names, made.sizes, made.width) == (fitted.names, fitted.sizes, fitted.width)


class Slope(nn.Module):
    """Its forward takes a derivative by torch.func, which takes no hooks of saved tensors."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, inputs):
        return torch.func.vmap(torch.func.grad(lambda each: self.body(each).squeeze()))(inputs)


def test_a_network_that_takes_no_hooks_is_planned_without_what_attention_keeps():
    assert shown(Slope(), torch.randn(BATCH, WIDTH)).attention == 0
