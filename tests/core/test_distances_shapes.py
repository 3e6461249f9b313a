"""Layers count only where their inputs are rows of points of the usual shape: padding, order, odd tensors."""

import dataclasses

import pytest
import torch
from torch import nn

from slu import SLU
from slu.core.distances import Folding
from slu.core.layer_sums import LayerSums
from slu.gradients import LayerInputs, Network
from slu.parameters import select


class Masked(nn.Module):
    """A mean over the words of a text; what is padded has the number 0 and an embedding, and is masked in the end."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.each = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, words):
        kept = (words > 0)[..., None].float()
        return self.head((self.each(self.words(words)).tanh() * kept).sum(1) / kept.sum(1))


def texts(count, length, seed):
    return torch.randint(1, 20, (count, length), generator=torch.Generator().manual_seed(seed))


def padded(words, length):
    return torch.cat([words, words.new_zeros(len(words), length - words.shape[1])], 1)


class Looped(Masked):
    """The same, word by word."""

    def forward(self, words):
        kept = (words > 0)[..., None].float()
        each = torch.stack([self.each(word) for word in self.words(words).unbind(1)], 1).tanh()
        return self.head((each * kept).sum(1) / kept.sum(1))


@pytest.fixture(scope="module", params=[Masked, Looped])
def model(request):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return request.param()


def test_padding_of_a_query_changes_no_score(model):
    """Batches of the fit are padded to different lengths, as a collator does it."""
    loader = [padded(texts(50, 5, place), 6 + place % 3) for place in range(8)]
    score = SLU(model, "classification").fit(loader)
    assert score.state.layers.names == ("head",), "a mean over positions would depend on the padding"
    fresh = texts(20, 5, 99)
    expected = score(fresh)
    for length in (6, 9, 40):
        torch.testing.assert_close(score(padded(fresh, length)), expected, rtol=1e-5, atol=1e-5)


def test_at_another_length_layers_over_positions_do_not_count(model):
    score = SLU(model, "classification").fit([padded(texts(50, 5, place), 8) for place in range(8)])
    assert score.state.layers.names == ("each", "head")
    fresh = texts(20, 5, 99)
    short, long = score(padded(fresh, 7)), score(padded(fresh, 40))
    torch.testing.assert_close(short, long, rtol=1e-5, atol=1e-5)
    # Control: at the usual length they do, and afterwards too.
    usual = score(padded(fresh, 8))
    assert not torch.allclose(usual, short, atol=1e-3)
    assert torch.equal(score(padded(fresh, 8)), usual)


class Sorted(nn.Module):
    """Sorts its batch inside, and its outputs back."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, inputs):
        order = inputs[:, 0].argsort()
        outputs = self.last(self.first(inputs[order]).tanh())
        return outputs[order.argsort()]


@pytest.mark.parametrize("size", [1, 100])
def test_points_in_another_order_inside_get_no_distance_of_others(size):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = Sorted(), torch.randn(200, 4)
    inputs = inputs[inputs[:, 0].argsort()]  # the last of the first batch is the last one inside as well
    inputs[[0, 50]] = inputs[[50, 0]]
    score = SLU(model, "classification", rank=5).fit([(each,) for each in inputs.split(size)])
    fresh = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    together = score(fresh)
    alone = torch.cat([score(each[None]) for each in fresh])
    if size > 1:
        assert score.state.layers is None
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)
    else:  # alone all are in order; in a batch of several the layers are found out, and drop out
        assert torch.isfinite(together).all()
        torch.testing.assert_close(score(fresh.flip(0)).flip(0), together, rtol=1e-4, atol=1e-4)


class Backbone(nn.Module):
    """Its first part runs in inference mode, as some wrappers of frozen encoders do."""

    def __init__(self):
        super().__init__()
        self.below, self.above = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, inputs):
        with torch.inference_mode():
            hidden = self.below(inputs).tanh()
        return self.above(hidden.clone())


def test_tensors_of_inference_mode():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = Backbone(), torch.randn(300, 4)
    score = SLU(model, "classification", params="above.*", rank=5).fit(inputs)
    assert "above" in score.state.layers.names and torch.isfinite(score(inputs[:5])).all()


class Graph(nn.Module):
    """Takes a sparse matrix as the first input of a layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = _Propagate(), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.head(self.layer(torch.eye(len(inputs)).to_sparse(), inputs).tanh())


class _Propagate(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))

    def forward(self, matrix, inputs):
        return torch.sparse.mm(matrix, inputs @ self.weight)


def test_sparse_inputs_of_a_layer_are_passed_over():
    inputs = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    score = SLU(Graph(), "classification", rank=5).fit(inputs)
    assert score.state.layers.names == ("head",)


def test_an_interrupt_while_hooks_are_registered_leaves_none(monkeypatch):
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    watch = LayerInputs(Network(model, select(model)))
    monkeypatch.setattr(model[2], "register_forward_pre_hook", _interrupted)
    with pytest.raises(KeyboardInterrupt), watch:
        pass
    assert not any(module._forward_pre_hooks for module in model.modules())


def _interrupted(*_, **__):
    raise KeyboardInterrupt


def test_merged_scores_keep_the_layers_that_both_have():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = (
            nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(),
            torch.randn(600, 4).double(),
        )
    settings = {"rank": 5, "sketch": "identity", "scale": None}
    one, two = (SLU(model, "classification", **settings).fit(each) for each in inputs.split(300))
    fewer = LayerSums(one.settings.network, 10**6, 0)
    fewer.begin_with(two.state.layers)
    fewer._keep(["2"])
    two.state = dataclasses.replace(two.state, layers=fewer.statistics())
    merged = SLU.merge([one, two]).state.layers
    assert merged.names == ("2",) and merged.points == one.state.layers.points + two.state.layers.points
    both = LayerSums(one.settings.network, 10**6, 0)
    both.begin_with(one.state.layers)
    assert merged.folding.shapes == both._keep(["2"]).shapes == ((1, 5),)


def test_merged_scores_of_other_lengths_keep_the_layers_behind_the_pooling(model):
    settings = {"rank": 5, "scale": None}
    data = [[padded(texts(50, 5, place), length) for place in range(8)] for length in (8, 9)]
    merged = SLU.merge([SLU(model, "classification", **settings).fit(each) for each in data])
    assert merged.state.layers.names == ("head",)


def test_distances_without_any_layer_are_no_alarm():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        inputs, other = torch.randn(300, 1, 8, 8), torch.randn(6, 1, 10, 10)
    score = SLU(model, "classification", rank=5).fit(inputs)
    for reading in ("distance", "angle"):
        assert score(other, reading=reading).isnan().all() and score.pvalue(other, reading=reading).isnan().all()
        assert not bool(score.flag(other, reading=reading).any())
    assert score(other).isfinite().all() and score.pvalue(other).isfinite().all()
    assert "nan" not in str(score.explain(other))


def test_many_points_are_folded_in_parts():
    folding = Folding(("a", "b"), (3000, 5), 64, 0)
    values = {"a": torch.randn(200, 3000), "b": torch.randn(200, 5)}
    parts = [folding({name: each[start : start + 7] for name, each in values.items()}) for start in range(0, 200, 7)]
    torch.testing.assert_close(folding(values), torch.cat(parts, 1), rtol=1e-12, atol=1e-12)
