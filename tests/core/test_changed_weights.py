"""Weights that changed since the fit: a query is refused, unless it is told not to look."""

import copy
import sys

import pytest
import torch
from torch import nn

from oracles import network
from slu import SLU, MaxLogit
from slu.errors import MismatchError
from slu.parameters import KnownWeights


@pytest.fixture(params=["mlp", "conv"])
def fitted(request):
    model, some = network(request.param)
    inputs = torch.randn(50, *some.shape[1:], dtype=some.dtype, generator=torch.Generator().manual_seed(0))
    return SLU(model, "classification", rank=3).fit(inputs), model, inputs


def trained(model, inputs):
    """One step of training, as a user does it."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    nn.functional.cross_entropy(model(inputs), torch.zeros(len(inputs), dtype=torch.long)).backward()
    optimizer.step()
    optimizer.zero_grad()


def replaced(model, inputs):
    last = list(model)[-1]
    model[-1] = nn.Linear(last.in_features, last.out_features).double()


def loaded(model, inputs):
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})


def reassigned(model, inputs):
    model[-1].bias.data = model[-1].bias.data + 1


def fused(model, inputs):
    """torch does not count what this optimizer changes."""
    versions = [value._version for value in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, fused=True)
    nn.functional.cross_entropy(model(inputs), torch.zeros(len(inputs), dtype=torch.long)).backward()
    optimizer.step()
    assert versions == [value._version for value in model.parameters()]


def written(model, inputs):
    for value in model.parameters():
        value.data *= 1.5


CHANGES = {
    "fused": fused,
    "written": written,
    "trained": trained,
    "replaced": replaced,
    "loaded": loaded,
    "reassigned": reassigned,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_query_is_refused_with_what_changed(fitted, change):
    score, model, inputs = fitted
    score(inputs)
    CHANGES[change](model, inputs)
    for ask in (score, score.pvalue, score.flag, score.explain, score.read_all, score.partial_fit, score.calibrate):
        with pytest.raises(MismatchError, match=r"has changed since .* have changed.*score\.check_weights = False"):
            ask(inputs)
    score.check_weights = False
    assert bool(score(inputs).isfinite().all())


def test_running_statistics_count():
    model, some = network("conv")
    score = SLU(model, "classification", rank=3, seed=1).fit(torch.cat([some] * 4) + torch.randn(48, 1, 6, 6).double())
    model.train()
    model(some)
    with pytest.raises(MismatchError, match="running_mean have changed"):
        score(some)


def test_what_changes_nothing_is_no_change(fitted):
    score, model, inputs = fitted
    expected = score(inputs)
    model.train()
    model.eval()
    model.requires_grad_(False)
    model.requires_grad_(True)
    assert torch.equal(score(inputs), expected)
    model.load_state_dict(copy.deepcopy(model.state_dict()))  # the same values, counted as a change in place
    assert torch.equal(score(inputs), expected)
    for value in model.parameters():
        value.data = value.data.clone()  # as a move to another device does
    assert torch.equal(score(inputs), expected)
    trained(model, inputs)
    with pytest.raises(MismatchError):
        score(inputs)


def test_own_calls_do_not_count(fitted, monkeypatch):
    """The fingerprint is not computed again for what fits and queries themselves put in the places of parameters."""
    score, _, inputs = fitted
    score(inputs)
    module = sys.modules["slu.parameters.fingerprint"]
    monkeypatch.setattr(module, "fingerprint", lambda model: pytest.fail("computed again"))
    for reading in score.readings:
        score(inputs, reading=reading)
    score.explain(inputs[:4])


def test_a_new_tensor_in_freed_memory_is_another(fitted):
    _, model, _ = fitted
    known = KnownWeights(model)
    for _ in range(20):
        shape = model[-1].bias.shape
        model[-1].bias = None
        model[-1].bias = nn.Parameter(torch.full(shape, 7.0).double())
        assert known.change(model) is not None


def test_baselines_refuse_as_well(fitted):
    _, model, inputs = fitted
    score = MaxLogit(model).fit()
    trained(model, inputs)
    with pytest.raises(MismatchError, match="has changed since the score was fitted"):
        score(inputs)
    score.check_weights = False
    assert bool(score(inputs).isfinite().all())


@pytest.mark.parametrize("method", [SLU, MaxLogit])
def test_load_has_the_same_switch(fitted, method, tmp_path):
    score, model, inputs = fitted
    score = score if method is SLU else MaxLogit(model).fit()
    score.save(tmp_path / "a.slu")
    assert torch.equal(method.load(tmp_path / "a.slu", model)(inputs), score(inputs))
    trained(model, inputs)
    with pytest.raises(MismatchError, match="another network"):
        method.load(tmp_path / "a.slu", model)
    other = method.load(tmp_path / "a.slu", model, check_weights=False)
    assert bool(other(inputs).isfinite().all())
    other.check_weights = True
    with pytest.raises(MismatchError, match="has changed"):
        other(inputs)
    with pytest.raises(MismatchError, match="another network"):  # of other shapes in any case
        method.load(tmp_path / "a.slu", nn.Sequential(nn.Linear(2, 2)), check_weights=False)
