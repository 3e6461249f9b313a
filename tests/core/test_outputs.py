"""Which rows of an input are measured: leading directions, all outputs and probes, by dense float64 algebra."""

from functools import lru_cache

import pytest
import torch

from calibrated import problem, slu
from oracles import (
    LIKELIHOODS,
    content_numbers,
    ggn,
    jacobian,
    leading_eigenvectors,
    measured_directions,
    network,
    output_factor,
    outputs_of,
    projected_out,
    read_as,
)
from shorthand import paper_slu, pulls
from slu import Probes, Stream
from slu.core.readout import GRADIENT_READINGS
from slu.errors import SettingError
from slu.likelihoods import Classification

KINDS = ("mlp", "conv", "encoder", "tied")
RANK = 4
CHOICES = (1, 2, 3, 8, "all", Probes(3))


class Own:
    """A user's own likelihood, with the four methods alone and a Hessian that is neither diagonal nor singular.

    A softmax over a temperature of 2, and half a squared loss: H = (diag π - ππᵀ) / 4 + I / 2.
    """

    def loss(self, outputs, targets):
        return Classification().loss(outputs / 2, targets) + 0.25 * outputs.square().sum(1)

    def hessian_product(self, outputs, vectors):
        return torch.einsum("bij,...bj->...bi", self.dense(outputs), vectors)

    def factor_product(self, outputs, vectors, *, transpose=False):
        factor = torch.linalg.cholesky(self.dense(outputs))
        return torch.einsum("bij,...bj->...bi", factor.mT if transpose else factor, vectors)

    def sample(self, outputs, uniform):
        return Classification().sample(outputs / 2, uniform)

    def dense(self, outputs):
        probability = (outputs / 2).softmax(1)
        hessian = torch.diag_embed(probability) - probability[:, :, None] * probability[:, None, :]
        return hessian / 4 + torch.eye(outputs.shape[1], dtype=outputs.dtype) / 2


@lru_cache(maxsize=64)
def fitted(kind, likelihood):
    """The score, exact for its rank; queries, their J, and the basis that is projected out."""
    model, inputs = network(kind)
    queries = 1.5 * inputs[:7] + 0.3
    solver = Stream(labels_per_point="all", oversampling=2000)
    named = Own() if likelihood == "own" else likelihood
    score = paper_slu(model, named, rank=RANK, sketch="identity", solver=solver).fit(inputs)
    if likelihood == "own":
        rows = jacobian(model, inputs)
        matrix = torch.einsum("bip,bij,bjq->pq", rows, named.dense(outputs_of(model, inputs).detach()), rows)
    else:
        matrix = ggn(model, inputs, likelihood)
    return score, queries, jacobian(model, queries), leading_eigenvectors(matrix, RANK)


def directions(likelihood, outputs, reading, choice, points, seed=0):
    """(b, q, t) vectors whose rows are measured, from the definitions."""
    fisher = reading.startswith("fisher")
    size = outputs.shape[1]
    if likelihood == "own":
        hessian = Own().dense(outputs)
        values, vectors = torch.linalg.eigh(hessian)
        vectors, values, factor = vectors.flip(-1).mT, values.flip(-1), torch.linalg.cholesky(hessian)
    elif isinstance(choice, int):
        vectors, values = measured_directions(likelihood, outputs, min(choice, size))
    if isinstance(choice, int):
        vectors, values = vectors[:, :choice], values[:, :choice]
        return vectors * values.sqrt()[..., None] if fisher else vectors
    mixtures = torch.eye(size, dtype=torch.float64).expand(len(outputs), -1, -1)
    if isinstance(choice, Probes):
        signs = [drawn_signs(point, choice.count * size, seed) for point in points]
        mixtures = torch.tensor(signs, dtype=torch.float64).view(len(outputs), choice.count, size)
        mixtures = mixtures / choice.count**0.5
    if likelihood != "own":
        factor = output_factor(likelihood, outputs)
    return torch.einsum("bij,bqj->bqi", factor, mixtures) if fisher else mixtures


def drawn_signs(point, count, seed):
    """The signs of a point: whether the numbers of its content, one for each place, are above a half."""
    return [1.0 if number > 0.5 else -1.0 for number in content_numbers([point.numpy()], seed, "probes", count)]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("likelihood", [*LIKELIHOODS, "own"])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_dense_formula(kind, likelihood, choice):
    score, queries, rows, basis = fitted(kind, likelihood)
    outputs = outputs_of(score.settings.network.model, queries).detach()
    for reading in GRADIENT_READINGS:
        measured = directions(likelihood, outputs, reading, choice, queries) @ rows
        expected = read_as(reading, projected_out(measured, basis).sum(-1), measured.square().sum((-1, -2)))
        scores = score(queries, reading=reading, outputs=choice)
        torch.testing.assert_close(scores, expected, rtol=1e-6, atol=1e-12)
        split = score(list(queries.split(3)), reading=reading, outputs=choice)
        torch.testing.assert_close(split, scores, rtol=1e-9, atol=1e-14)
        together = score.read_all(queries, outputs=choice)[reading]
        torch.testing.assert_close(together, scores, rtol=1e-9, atol=1e-14)
    # By default one direction for the Fisher readings, all outputs for the paper's.
    usual = {1: ("fisher", "fisher-relative"), "all": ("variance", "relative")}.get(choice, ())
    for reading in usual:
        assert torch.equal(score(queries, reading=reading), score(queries, reading=reading, outputs=choice))


@pytest.mark.parametrize("likelihood", [*LIKELIHOODS, "own"])
def test_as_many_directions_as_outputs_are_the_trace(likelihood):
    score, queries, _, _ = fitted("conv", likelihood)
    for reading in GRADIENT_READINGS:
        exact = score(queries, reading=reading, outputs="all")
        torch.testing.assert_close(score(queries, reading=reading, outputs=3), exact, rtol=1e-7, atol=1e-12)
        fewer = score(queries, reading=reading, outputs=1)
        assert not torch.allclose(fewer, exact, rtol=1e-3), "the control"


class Counted(torch.nn.Module):
    """Counts forward passes of a batch, and how many points they had."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.calls = inner, []

    def forward(self, inputs):
        self.calls.append(len(inputs))
        return self.inner(inputs)


@pytest.mark.parametrize("calibration", [None, False])
@pytest.mark.parametrize("outputs", [3, 200])
def test_a_default_query_is_one_forward_and_one_backward_pass(outputs, calibration, monkeypatch):
    inner, inputs = problem(220, outputs)
    model = Counted(inner)
    score = slu(model).fit(inputs, calibration=calibration)
    fresh = problem(8, seed=4)[1]
    score(fresh)  # the first batch of its size is checked, and formulas are verified
    pulled = pulls(monkeypatch)
    for points in (fresh, fresh + 1):
        model.calls.clear()
        pulled.clear()
        score(points)
        assert model.calls == [8] and pulled == [(8, 1)]
    pulled.clear()
    score(fresh, reading="variance")  # the control
    assert sum(shape[1] for shape in pulled) == outputs


def test_a_fit_calibrates_with_one_gradient_per_point(monkeypatch):
    model, inputs = problem(400, 7)
    pulled = pulls(monkeypatch)
    score = slu(model, scale=None).fit(inputs[:200], calibration=inputs[200:])
    assert score.calibration.points == 200
    # Half of the gradients are the stream's, one random mixture per point. Last come 16 points alone, for the rounding.
    assert {shape[:2] for shape in pulled[-16:]} == {(1, 1)}
    assert {shape[1] for shape in pulled[-20:-16]} == {1} and sum(shape[0] for shape in pulled[-20:-16]) == 200


@pytest.mark.parametrize("bad", [0, -1, 1.5, "most", None.__class__, [1], "ALL"])
def test_what_is_no_choice_is_refused_with_the_choices(bad):
    model, inputs = problem(30)
    score = slu(model).fit(inputs)
    with pytest.raises(SettingError, match=r"leading directions.*'all'.*Probes\(m\)"):
        score(inputs, outputs=bad)
    with pytest.raises(SettingError, match=r"leading directions.*'all'.*Probes\(m\)"):
        score.calibrate(inputs, outputs=bad)


def test_settings_that_exclude_each_other_are_refused():
    model, inputs = problem(30)
    score = slu(model).fit(inputs)
    with pytest.raises(SettingError, match="the number of probes must be at least 1"):
        Probes(0)
    with pytest.raises(SettingError, match="per_output=True measures all outputs, got outputs=2"):
        score(inputs, outputs=2, per_output=True)
    assert score(inputs, outputs="all", per_output=True).shape == (30, 3)
    for outputs in (None, 2, "all", Probes(1)):
        with pytest.raises(SettingError, match=r"needs at least 2 probes.*outputs=slu\.Probes\(8\)"):
            score(inputs, outputs=outputs, return_error=True)


def test_probes_depend_on_the_seed_and_the_content_alone():
    model, inputs = problem(60)
    first, again, other = (slu(model, scale=None, seed=seed).fit(inputs) for seed in (0, 0, 1))
    scores = first(inputs, outputs=Probes(2))
    assert torch.equal(scores, again(inputs, outputs=Probes(2)))
    torch.testing.assert_close(first(inputs.flip(0), outputs=Probes(2)).flip(0), scores)
    assert not torch.allclose(other(inputs, outputs=Probes(2)), scores, rtol=1e-3)
    twice = first(torch.cat([inputs[:1], inputs[:1]]), outputs=Probes(2))
    assert torch.equal(twice[0], twice[1])
