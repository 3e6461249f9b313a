"""Scores read at once are those of every score alone, and take the gradients of one."""

import pytest
import torch

import slu
from oracles import LIKELIHOODS, network, targets_for
from slu.comparing import read_shared
from slu.errors import MismatchError, NotFiniteWarning, SettingError
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


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", ["mlp", "conv", "encoder"])
def test_each_is_as_alone(kind, likelihood):
    model, inputs, scores = several(kind, likelihood)
    before = snapshot(model)
    for reading in ("variance", "relative"):
        for data in (inputs, [(inputs[:5],), (inputs[5:],)]):
            shared = read_shared(scores, data, reading)
            for score, one in zip(scores, shared, strict=True):
                alone = score(data, reading=reading)
                rounding = 1e-10 * float(alone.abs().max())
                assert torch.allclose(one.scores, alone, rtol=1e-9, atol=rounding), type(score).__name__
                assert one.scores.dtype == alone.dtype and one.seconds > 0
    assert_same(before, snapshot(model))


def test_the_scores_differ():
    """A control: were all the same, the test above would say nothing of which is whose."""
    _, inputs, scores = several("mlp")
    values = torch.stack([each.scores for each in read_shared(scores, inputs)])
    pairs = (values[:, None] - values).abs().amax(-1) / values.abs().amax(-1)
    assert bool((pairs + torch.eye(len(scores)) > 1e-4).all())


def test_gradients_are_formed_once():
    model, inputs, scores = several("conv")
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    data = [(inputs[:6],), (inputs[6:],)]
    read_shared(scores, data)
    at_once = len(calls)
    calls.clear()
    scores[0](data, reading="variance")
    alone = len(calls)
    handle.remove()
    assert at_once <= alone + 3  # a first batch of every size is checked once more


def test_a_point_that_is_not_finite_harms_no_other():
    _, inputs, scores = several("mlp")
    spoiled = inputs.clone()
    spoiled[2] = torch.nan
    with pytest.warns(NotFiniteWarning):
        shared = read_shared(scores, spoiled)
    for one, good in zip(shared, read_shared(scores, inputs), strict=True):
        assert one.scores[2] == torch.inf
        others = torch.arange(len(inputs)) != 2
        assert torch.allclose(one.scores[others], good.scores[others], rtol=1e-9)


def test_what_cannot_be_read_at_once():
    model, inputs, scores = several("mlp")
    other = several("mlp")[2][0]
    with pytest.raises(SettingError, match="score 1 is of another module"):
        read_shared([scores[0], other], inputs)
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
