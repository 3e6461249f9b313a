"""GradNorm against autograd in the weights, one point at a time."""

import pytest
import torch
from torch import nn

from featured import HEADS, Tokens, head, last_inputs
from oracles import NETWORKS, network
from slu import GradNorm
from slu.errors import SettingError


@pytest.fixture(autouse=True)
def _seeded():
    """Weights of networks that are made here."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def by_autograd(model, layer, inputs, forward=None):
    """The 1-norm of the gradient of KL(uniform ‖ softmax) in the layer's weights, by one backward pass per point."""
    model.eval()
    values = []
    for one in inputs.split(1):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            logs = (forward(model, one) if forward else model(one)).log_softmax(1)
        uniform = torch.full_like(logs, 1 / logs.shape[1])
        divergence = (uniform * (uniform.log() - logs)).sum()
        values.append(torch.autograd.grad(divergence, layer.weight)[0].abs().sum())
    model.train()
    return torch.stack(values)


@pytest.mark.parametrize("kind", NETWORKS)
def test_against_autograd(kind):
    model, inputs = network(kind)
    score = GradNorm(model, "classification").fit(inputs)
    expected = -by_autograd(model, head(kind, model), inputs)
    for data in (inputs, list(inputs.split(5)), list(inputs.split(1))):
        torch.testing.assert_close(score(data), expected, rtol=1e-9, atol=0)
    assert score.layer.name == HEADS[kind]


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_papers_product(kind):
    """‖π - 1/C‖₁ ‖h‖₁, as the paper decomposes it; negated, because it is larger for surer inputs."""
    model, inputs = network(kind)
    features = last_inputs(kind, model, inputs)
    shares = head(kind, model)(features).detach().softmax(1)
    expected = -(shares - 1 / 3).abs().sum(1) * features.abs().sum(1)
    torch.testing.assert_close(GradNorm(model, "classification").fit(inputs)(inputs), expected, rtol=1e-9, atol=0)


def test_positions_are_summed_before_the_norm():
    tokens = torch.randn(9, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = Tokens().double()
    score = GradNorm(model, "classification").fit(tokens)
    torch.testing.assert_close(score(tokens), -by_autograd(model, model.head, tokens), rtol=1e-9, atol=0)


def test_several_calls_and_what_follows_them():
    """A layer called twice, and logits that are changed in place after it."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, inputs):
            return self.head(inputs).tanh_() + 2 * self.head(inputs.square())

    model = Twice().double()
    inputs = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = -by_autograd(model, model.head, inputs)
    torch.testing.assert_close(GradNorm(model, "classification").fit(inputs)(inputs), expected, rtol=1e-9, atol=0)


def test_another_layer_and_a_forward_of_the_users_own():
    model, inputs = network("mlp")

    def doubled(model, inputs):
        return 2 * model(inputs)

    score = GradNorm(model, "classification", forward=doubled).fit(inputs)
    torch.testing.assert_close(score(inputs), -by_autograd(model, model[2], inputs, doubled), rtol=1e-9, atol=0)
    earlier = GradNorm(model, "classification", features="0").fit(inputs)
    torch.testing.assert_close(earlier(inputs), -by_autograd(model, model[0], inputs), rtol=1e-9, atol=0)
    assert not torch.allclose(earlier(inputs), GradNorm(model, "classification").fit(inputs)(inputs))


def test_gradients_need_not_be_enabled():
    model, inputs = network("conv")
    score = GradNorm(model, "classification").fit(inputs)
    with torch.no_grad():
        assert torch.equal(score(inputs), score(inputs))
        quiet = score(inputs)
    with torch.inference_mode():
        apart = score(inputs)
    assert torch.equal(quiet, score(inputs)) and torch.equal(apart, quiet) and not quiet.requires_grad


def test_certain_and_undecided_points():
    """A prediction that is uniform has no gradient: the least sure of all."""
    model = nn.Linear(3, 3, bias=False).double()
    model.weight.data = torch.eye(3).double()
    inputs = torch.tensor([[1.0, 1.0, 1.0], [9.0, 0.0, 0.0], [1.0, 0.0, 0.0]]).double()
    scores = GradNorm(model, "classification").fit(inputs)(inputs)
    assert float(scores[0]) == pytest.approx(0, abs=1e-12)
    assert scores.argsort(descending=True).tolist() == [0, 2, 1]


def test_a_layer_that_is_not_linear():
    with pytest.raises(SettingError, match="features='1' is a Tanh; name the former"):
        GradNorm(network("mlp")[0], "classification", features="1")
