"""SLU against dense linear algebra: with the identity sketch it is exact, with another it is the formula."""

from functools import lru_cache

import pytest
import torch
from torch import Tensor

from oracles import NETWORKS, ggn, jacobian, krylov_basis, network, output_hessian, outputs_of, projected_out
from slu import SLU
from slu.krylov import start_vector
from slu.methods.readings import READINGS
from slu.sketches import SKETCHES, SketchSpec, build

LIKELIHOODS = ["classification", "regression", "multilabel"]
RANK = 6


@lru_cache(maxsize=32)
def dense(kind: str) -> tuple[Tensor, Tensor]:
    """J of the training inputs and of the queries."""
    model, inputs = network(kind)
    return jacobian(model, inputs), jacobian(model, queries(inputs))


def queries(inputs: Tensor) -> Tensor:
    return 1.5 * inputs[:5] + 0.3


@lru_cache(maxsize=32)
def dense_basis(kind: str, likelihood: str, rank: int = RANK, seed: int = 0) -> Tensor:
    model, inputs = network(kind)
    matrix = ggn(model, inputs, likelihood)
    return krylov_basis(matrix, start_vector(matrix, seed), rank)


def rows_of(kind: str, likelihood: str, reading: str) -> Tensor:
    """J, or LᵀJ with the textbook's factor L of the Hessian in the outputs."""
    rows = dense(kind)[1]
    if not reading.startswith("fisher"):
        return rows
    model, inputs = network(kind)
    outputs = outputs_of(model, queries(inputs)).detach()
    if likelihood == "classification":
        prob = outputs.softmax(1)
        factor = torch.diag_embed(prob.sqrt()) - prob[:, :, None] * prob.sqrt()[:, None, :]
    else:
        factor = output_hessian(likelihood, outputs).sqrt()
    return torch.einsum("bij,bip->bjp", factor, rows)


def wanted(kind: str, likelihood: str, reading: str, per_output: bool) -> Tensor:
    rows = rows_of(kind, likelihood, reading)
    score, size = projected_out(rows, dense_basis(kind, likelihood)), rows.square().sum(-1)
    if not per_output:
        score, size = score.sum(-1), size.sum(-1)
    return score / size if reading.endswith("relative") else score


@pytest.mark.parametrize("precondition", [0, 3])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", NETWORKS)
def test_identity_sketch_is_exact(kind, likelihood, precondition):
    model, inputs = network(kind)
    score = SLU(model, likelihood, rank=RANK, sketch="identity", precondition=precondition).fit(inputs)
    assert score.diagnostics.effective_rank == RANK
    for reading in READINGS:
        for per_output in (False, True):
            found = score(queries(inputs), reading=reading, per_output=per_output)
            assert found.shape == ((5, 3) if per_output else (5,))
            # float64 throughout; six Lanczos steps lose a few digits of the space's direction.
            torch.testing.assert_close(found, wanted(kind, likelihood, reading, per_output), rtol=1e-7, atol=1e-12)


def test_readings_differ_from_one_another():
    """Control: a reading computed as another would be noticed."""
    found = [wanted("mlp", "classification", reading, False) for reading in READINGS]
    for i in range(4):
        for j in range(i):
            assert float((found[i] / found[j] - 1).abs().min()) > 1e-3


@pytest.mark.parametrize("kind", [kind for kind in SKETCHES if kind != "identity"])
@pytest.mark.parametrize("estimator", ["difference", "residual", "ratio"])
def test_sketched_score_is_the_formula_with_an_explicit_sketch(kind, estimator):
    model, inputs = network("conv")
    p, s = dense("conv")[0].shape[-1], 60
    score = SLU(model, "classification", rank=RANK, sketch=kind, sketch_size=s, estimator=estimator, seed=3)
    found = score.fit(inputs)(queries(inputs))
    matrix = build(SketchSpec(kind, p, s, seed=3), dtype=torch.float64) @ torch.eye(p, dtype=torch.float64)
    basis = torch.linalg.qr(matrix @ dense_basis("conv", "classification", seed=3))[0]
    rows = dense("conv")[1]
    exact, sketched = rows.square().sum((-1, -2)), rows @ matrix.T
    captured, whole = (sketched @ basis).square().sum((-1, -2)), sketched.square().sum((-1, -2))
    correction = build(SketchSpec(kind, p, s)).correction(RANK)
    formula = {
        "difference": exact - captured,  # the paper's
        "residual": correction * (whole - captured),
        "ratio": correction * exact * (whole - captured) / whole,
    }
    torch.testing.assert_close(found, formula[estimator], rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("precondition", [0, 5, 36])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_rank_of_the_whole_curvature_leaves_only_what_no_point_moves(likelihood, precondition):
    """More steps than G has rank: training points score zero, and nothing more is projected out."""
    model, inputs = network("conv")
    inputs = torch.cat([inputs[:8], inputs[:4]])  # some points twice: rank 8 t at most, and 12 t steps
    values, vectors = torch.linalg.eigh(ggn(model, inputs, likelihood))
    span = vectors[:, values > 1e-9 * values[-1]]
    score = SLU(model, likelihood, rank=36, precondition=precondition, sketch="identity").fit(inputs)
    rows = dense("conv")[1]
    torch.testing.assert_close(score(queries(inputs)), projected_out(rows, span).sum(-1), rtol=1e-6, atol=0)
    assert float(score(inputs, reading="fisher-relative").max()) < 1e-9
    assert score.diagnostics.effective_rank == span.shape[1]
    assert score.diagnostics.exhausted == (precondition == 36)  # otherwise ghosts fill the steps


def test_same_seed_same_scores_and_another_seed_others():
    model, inputs = network("conv")
    first, second, other = (
        SLU(model, "classification", rank=RANK, sketch="block_srft", sketch_size=60, seed=seed).fit(inputs)(inputs)
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.allclose(first, other)


def test_keep_is_passed_on():
    model, inputs = network("mlp")
    score = SLU(model, "classification", rank=10, sketch="identity", keep=0.9).fit(inputs)
    assert score.subspace.basis.shape[0] == score.diagnostics.effective_rank == 9


@pytest.mark.parametrize("curvature", ["fisher", "empirical-fisher", "hessian"])
def test_other_curvatures_give_other_subspaces(curvature):
    model, inputs = network("mlp")
    data = [(inputs, torch.arange(12) % 3)]
    plain = SLU(model, "classification", rank=4, sketch="identity").fit(data)(inputs)
    found = SLU(model, "classification", rank=4, sketch="identity", curvature=curvature).fit(data)(inputs)
    assert bool(torch.isfinite(found).all())
    assert not torch.allclose(found, plain, rtol=1e-3)


def test_diagnostics_tell_of_the_fit():
    model, inputs = network("mlp")
    loader = [inputs[:5], inputs[5:]]
    found = SLU(model, "classification", rank=RANK).fit(loader).diagnostics
    assert (found.points, found.passes, found.steps) == (12, RANK, RANK)
    assert found.seconds > 0
    values = torch.linalg.eigvalsh(ggn(model, inputs, "classification"))
    assert found.ritz_values[0] == pytest.approx(float(values[-1]), rel=1e-2)


def test_confident_network_keeps_its_fisher_readings_in_float32():
    """Softmax at 1 - 1e-13 and beyond: the plain formula rounds to zero, the score must not."""
    model, inputs = network("mlp")
    model[2].weight.data *= 30.0
    far = 4 * inputs
    exact, single = (
        SLU(model.to(dtype), "classification", rank=3, sketch="identity").fit(0.05 * inputs.to(dtype))
        for dtype in (torch.float64, torch.float32)
    )
    prob = outputs_of(model.float(), far.float()).softmax(1).detach()
    assert float((1 - prob.amax(1)).min()) == 0.0  # the control: what a plain formula sees of some points
    for reading in ("fisher", "fisher-relative"):
        found = single(far.float(), reading=reading)
        model.double()
        reference = exact(far, reading=reading)
        model.float()
        assert bool(torch.isfinite(found).all())
        assert float(reference.min()) > 0
        # Logits of size 100 in float32 are known to 1e-5, so are logarithms of probabilities.
        torch.testing.assert_close(found.double(), reference, rtol=1e-2, atol=1e-36)
