"""Scores read at once are those of every score alone, and take the gradients of one."""

import pytest
import torch

import slu
from oracles import LIKELIHOODS, network, targets_for
from slu.comparing import read_shared
from slu.errors import MismatchError, NotFiniteWarning, SettingError
from slu.gradients.layers import LayerBackward
from untouched import assert_same, snapshot


def several(kind, likelihood="classification"):
    """A network, points to ask about, and every score of gradients on it, SLU in three ways."""
    model, inputs = network(kind)
    loader = [(inputs, targets_for(likelihood, len(inputs)))]
    paper = {"rank": 4, "sketch_size": 30, "solver": "lanczos", "scale": None, "ridge": 0.0}
    methods = [
        slu.SLU(model, likelihood, **paper),
        slu.SLU(model, likelihood, **paper, sketch="srft", estimator="difference"),
        slu.SLU(model, likelihood, rank=4, sketch_size=30),  # scaled, and gradients of matrices as factors
        slu.LocalEnsemble(model, likelihood, rank=4),
        slu.LowRankLaplace(model, likelihood, rank=4, prior_precision=2.0),
        slu.DiagonalLaplace(model, likelihood),
        slu.SCOD(model, likelihood, rank=2),
    ]
    fitted = [each.fit(loader, **({"calibration": False} if isinstance(each, slu.SLU) else {})) for each in methods]
    return model, inputs, fitted


def assert_as_alone(scores, data, reading, rounding):
    for score, shared in zip(scores, read_shared(scores, data, reading), strict=True):
        alone = score(data, reading=reading)
        assert shared.dtype == alone.dtype and shared.shape == alone.shape
        wrong = (shared - alone).abs().nan_to_num(0.0).max() / alone.nan_to_num(0.0).abs().max()
        assert float(wrong) < rounding, type(score).__name__
        assert torch.equal(shared.isnan(), alone.isnan())


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", ["mlp", "conv", "encoder"])
def test_each_is_as_alone(kind, likelihood):
    model, inputs, scores = several(kind, likelihood)
    before = snapshot(model)
    for reading in ("variance", "relative"):
        for data in (inputs, [(inputs[:5],), (inputs[5:],)]):
            assert_as_alone(scores, data, reading, 1e-10)
    assert_same(before, snapshot(model))


class Rolled(torch.nn.Module):
    """Takes the general fallback: its weights are not those of a layer."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        return torch.tanh(x @ torch.roll(self.weight, 1, 0) * self.weight.square().sum(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_other_types_and_by_the_general_fallback(dtype):
    for model in (network("mlp")[0], Rolled()):
        inputs = torch.randn(12, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
        methods = [
            kind(model.to(dtype), "classification", **how)
            for kind, how in (
                (slu.LocalEnsemble, {"rank": 3}),
                (slu.DiagonalLaplace, {}),
                (slu.SLU, {"rank": 3, "sketch_size": 10, "solver": "lanczos", "scale": None}),
            )
        ]
        assert_as_alone([each.fit((inputs, torch.arange(12) % 3)) for each in methods], inputs, "variance", 1e-5)


def test_positions_of_tokens():
    model = torch.nn.Linear(4, 3).double()
    inputs = torch.randn(10, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.randint(3, (10, 5), generator=torch.Generator().manual_seed(1))
    methods = [slu.SLU(model, "classification", rank=rank, sketch_size=12) for rank in (3, 4)]
    scores = [each.fit((inputs, targets), calibration=False) for each in methods]
    (first, _) = read_shared(scores, inputs)
    assert first.shape == (10, 5)
    assert_as_alone(scores, inputs, "variance", 1e-10)


def test_the_scores_differ():
    """A control: were all the same, the tests above would say nothing of which is whose."""
    _, inputs, scores = several("mlp")
    values = torch.stack(read_shared(scores, inputs))
    pairs = (values[:, None] - values).abs().amax(-1) / values.abs().amax(-1)
    assert bool((pairs + torch.eye(len(scores)) > 1e-4).all())


def test_gradients_are_formed_once(monkeypatch):
    _, inputs, scores = several("conv")
    formed = []
    gradient = LayerBackward.gradient

    def counted(self, part, *where):
        formed.append(part.name)
        return gradient(self, part, *where)

    read_shared(scores, inputs)  # the first batch of a size is also verified
    monkeypatch.setattr(LayerBackward, "gradient", counted)
    scores[3](inputs, reading="variance")
    alone = len(formed)
    formed.clear()
    read_shared(scores, inputs)
    assert 0 < len(formed) <= 2 * alone, "verified, and formed once"
    formed.clear()
    for score in scores:
        score(inputs, reading="variance")
    assert len(formed) > 4 * alone, "control: each forms its own"


def test_a_point_that_is_not_finite_harms_no_other():
    _, inputs, scores = several("mlp")
    spoiled = inputs.clone()
    spoiled[2] = torch.nan
    with pytest.warns(NotFiniteWarning):
        shared = read_shared(scores, spoiled)
    for one, good in zip(shared, read_shared(scores, inputs), strict=True):
        assert one[2] == torch.inf
        others = torch.arange(len(inputs)) != 2
        assert torch.allclose(one[others], good[others], rtol=1e-9)


def test_what_cannot_be_read_at_once():
    model, inputs, scores = several("mlp")
    other = several("mlp")[2][0]
    with pytest.raises(SettingError, match="score 1 is of another module"):
        read_shared([scores[0], other], inputs)
    tripled = slu.LocalEnsemble(model, "classification", rank=4, forward=lambda module, x: module(3 * x)).fit(inputs)
    with pytest.raises(SettingError, match="score 1 is of another module, other parameters, another forward="):
        read_shared([scores[3], tripled], inputs)
    part = slu.LocalEnsemble(model, "classification", rank=4, params="0.*").fit(inputs)
    with pytest.raises(SettingError, match="other parameters"):
        read_shared([scores[3], part], inputs)
    with pytest.raises(SettingError, match="score 1, OutputScore, measures no gradients"):
        read_shared([scores[0], slu.MaxLogit(model).fit(None)], inputs)
    with pytest.raises(SettingError, match="no scores"):
        read_shared([], inputs)
    with pytest.raises(SettingError, match="'variance', 'relative'"):
        read_shared(scores, inputs, "entropy")
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    with pytest.raises(MismatchError):
        read_shared(scores[3:], inputs)
