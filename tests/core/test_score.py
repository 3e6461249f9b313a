"""SLU against dense linear algebra: with the identity sketch it is exact, with another it is the formula."""

from functools import lru_cache

import pytest
import torch
from torch import Tensor

from oracles import (
    NETWORKS,
    ggn,
    jacobian,
    krylov_basis,
    leading_eigenvectors,
    network,
    outputs_of,
    projected_out,
    read_as,
    rows_of,
)
from shorthand import paper_slu
from slu import Lanczos, Stream
from slu.core.readout import GRADIENT_READINGS
from slu.krylov import start_vector
from slu.parameters import matrix_shape
from slu.sketches import SKETCHES, SketchSpec, build

LIKELIHOODS = ["classification", "regression", "multilabel"]
RANK = 6
# As many vectors as there are directions: nothing of the sum is cut off before its eigenvectors are found.
EXACT = Stream(labels_per_point="all", oversampling=2000)
LANCZOS = Lanczos()
EACH = {"stream": EXACT, "lanczos": LANCZOS}
each_solver = pytest.mark.parametrize("solver", EACH)


@lru_cache(maxsize=32)
def dense(kind: str) -> tuple[Tensor, Tensor]:
    """J of the training inputs and of the queries."""
    model, inputs = network(kind)
    return jacobian(model, inputs), jacobian(model, queries(inputs))


def queries(inputs: Tensor) -> Tensor:
    return 1.5 * inputs[:5] + 0.3


@lru_cache(maxsize=32)
def dense_basis(kind: str, likelihood: str, solver: str = "lanczos", seed: int = 0) -> Tensor:
    """The Krylov space from the same start vector, or the leading eigenvectors."""
    model, inputs = network(kind)
    matrix = ggn(model, inputs, likelihood)
    if solver == "stream":
        return leading_eigenvectors(matrix, RANK)
    return krylov_basis(matrix, start_vector(matrix, seed), RANK)


def wanted(kind: str, likelihood: str, reading: str, per_output: bool, solver: str = "lanczos") -> Tensor:
    rows = rows_of(kind, likelihood, reading)
    score, size = projected_out(rows, dense_basis(kind, likelihood, solver)), rows.square().sum(-1)
    if not per_output:
        score, size = score.sum(-1), size.sum(-1)
    return read_as(reading, score, size)


@pytest.mark.parametrize(
    "solver", [EXACT, LANCZOS, Lanczos(precondition=3)], ids=["stream", "lanczos", "preconditioned"]
)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", NETWORKS)
def test_identity_sketch_is_exact(kind, likelihood, solver):
    model, inputs = network(kind)
    score = paper_slu(model, likelihood, rank=RANK, sketch="identity", solver=solver).fit(inputs)
    assert score.diagnostics.effective_rank == RANK
    for reading in GRADIENT_READINGS:
        for per_output in (False, True):
            found = score(queries(inputs), reading=reading, outputs="all", per_output=per_output)
            assert found.shape == ((5, 3) if per_output else (5,))
            # float64 throughout; six Lanczos steps lose a few digits of the space's direction.
            expected = wanted(kind, likelihood, reading, per_output, "stream" if solver is EXACT else "lanczos")
            torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-12)


def test_readings_differ_from_one_another():
    """Control: a reading computed as another would be noticed."""
    found = [wanted("mlp", "classification", reading, False) for reading in GRADIENT_READINGS]
    for i in range(4):
        for j in range(i):
            assert float((found[i] / found[j] - 1).abs().min()) > 1e-3


@each_solver
@pytest.mark.parametrize("kind", [kind for kind in SKETCHES if kind != "identity"])
@pytest.mark.parametrize("estimator", ["difference", "residual", "ratio"])
def test_sketched_score_is_the_formula_with_an_explicit_sketch(kind, estimator, solver):
    model, inputs = network("conv")
    p, s = dense("conv")[0].shape[-1], 60
    settings = {
        "rank": RANK,
        "sketch": kind,
        "sketch_size": s,
        "estimator": estimator,
        "seed": 3,
        "solver": EACH[solver],
    }
    score = paper_slu(model, "classification", **settings).fit(inputs)
    found = score(queries(inputs), reading="variance")
    layout = tuple(matrix_shape(value.shape) for value in model.parameters())
    matrix = build(SketchSpec(kind, p, s, seed=3, layout=layout), dtype=torch.float64) @ torch.eye(
        p, dtype=torch.float64
    )
    if solver == "lanczos":
        basis = torch.linalg.qr(matrix @ dense_basis("conv", "classification", seed=3))[0]
    else:
        basis = leading_eigenvectors(matrix @ ggn(model, inputs, "classification") @ matrix.T, RANK)
    rows = dense("conv")[1]
    exact, sketched = rows.square().sum((-1, -2)), rows @ matrix.T
    captured, whole = (sketched @ basis).square().sum((-1, -2)), sketched.square().sum((-1, -2))
    correction = build(SketchSpec(kind, p, s, layout=layout)).correction(RANK)
    formula = {
        "difference": exact - captured,  # the paper's
        "residual": correction * (whole - captured),
        "ratio": correction * exact * (whole - captured) / whole,
    }
    torch.testing.assert_close(found, formula[estimator], rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("precondition", [None, 0, 5, 36], ids=["stream", "lanczos", "5 held", "all held"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_rank_of_the_whole_curvature_leaves_only_what_no_point_moves(likelihood, precondition):
    """More steps or rows than G has rank: training points score zero, and nothing more is projected out."""
    model, inputs = network("conv")
    inputs = torch.cat([inputs[:8], inputs[:4]])  # some points twice: rank 8 t at most, and 12 t steps
    values, vectors = torch.linalg.eigh(ggn(model, inputs, likelihood))
    span = vectors[:, values > 1e-9 * values[-1]]
    solver = EXACT if precondition is None else Lanczos(precondition)
    score = paper_slu(model, likelihood, rank=36, sketch="identity", solver=solver).fit(inputs)
    rows = dense("conv")[1]
    found = score(queries(inputs), reading="variance")
    torch.testing.assert_close(found, projected_out(rows, span).sum(-1), rtol=1e-6, atol=0)
    assert float(score(inputs, reading="fisher-relative", outputs="all").max()) < 1e-9
    assert score.diagnostics.effective_rank == span.shape[1]
    assert score.diagnostics.exhausted == (precondition == 36)  # otherwise ghosts fill the steps


@pytest.mark.parametrize("solver", [None, LANCZOS], ids=["default", "lanczos"])
def test_same_seed_same_scores_and_another_seed_others(solver):
    model, inputs = network("conv")
    settings = {"rank": RANK, "sketch": "block_srft", "sketch_size": 60, "solver": solver}
    first, second, other = (
        paper_slu(model, "classification", seed=seed, **settings).fit(inputs)(inputs) for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.allclose(first, other)


def test_keep_is_passed_on():
    model, inputs = network("mlp")
    score = paper_slu(model, "classification", rank=10, sketch="identity", solver=Lanczos(keep=0.9)).fit(inputs)
    assert score.state.subspace.basis.shape[0] == score.diagnostics.effective_rank == 9


@pytest.mark.parametrize(
    ("curvature", "solver"),
    [(kind, solver) for solver in EACH for kind in ("fisher", "empirical-fisher")] + [("hessian", "lanczos")],
)
def test_other_curvatures_give_other_subspaces(curvature, solver):
    """In one pass the GGN by all labels: at one label a point it is the Fisher."""
    model, inputs = network("mlp")
    data = [(inputs, torch.arange(12) % 3)]
    settings = {"rank": 4, "sketch": "identity", "solver": solver}
    plain = paper_slu(model, "classification", rank=4, sketch="identity", solver=EACH[solver]).fit(data)(inputs)
    found = paper_slu(model, "classification", curvature=curvature, **settings).fit(data)(inputs)
    assert bool(torch.isfinite(found).all())
    assert not torch.allclose(found, plain, rtol=1e-3)


@each_solver
def test_diagnostics_tell_of_the_fit(solver):
    model, inputs = network("mlp")
    loader = [inputs[:5], inputs[5:]]
    found = paper_slu(model, "classification", rank=RANK, solver=EACH[solver]).fit(loader).diagnostics
    assert (found.points, found.passes, found.steps) == (12, 1 if solver == "stream" else RANK, RANK)
    assert found.seconds > 0
    values = torch.linalg.eigvalsh(ggn(model, inputs, "classification"))
    assert found.ritz_values[0] == pytest.approx(float(values[-1]), rel=1e-2)


@pytest.mark.parametrize("outputs", [1, 2, "all"])
@each_solver
def test_confident_network_keeps_its_fisher_readings_in_float32(solver, outputs):
    """Softmax at 1 - 1e-13 and beyond: the plain formula rounds to zero, the score must not."""
    model, inputs = network("mlp")
    model[2].weight.data *= 30.0
    far = 4 * inputs
    exact, single = (
        paper_slu(model.to(dtype), "classification", rank=3, sketch="identity", solver=EACH[solver]).fit(
            0.05 * inputs.to(dtype)
        )
        for dtype in (torch.float64, torch.float32)
    )
    prob = outputs_of(model.float(), far.float()).softmax(1).detach()
    assert float((1 - prob.amax(1)).min()) == 0.0  # the control: what a plain formula sees of some points
    for reading in ("fisher", "fisher-relative"):
        found = single(far.float(), reading=reading, outputs=outputs)
        model.double()
        exact.check_weights = False  # of weights that were rounded to float32 since
        reference = exact(far, reading=reading, outputs=outputs)
        model.float()
        assert bool(torch.isfinite(found).all())
        assert float(reference.min()) > 0
        # Logits of size 100 in float32 are known to 1e-5, so are logarithms of probabilities.
        torch.testing.assert_close(found.double(), reference, rtol=1e-2, atol=1e-36)
