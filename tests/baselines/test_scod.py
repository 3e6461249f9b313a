"""SCOD against dense float64 formulas, with nothing sketched and with its own test matrices."""

from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles import (
    LIKELIHOODS,
    dense,
    ggn,
    jacobian,
    largest_angle,
    leading_eigenvectors,
    network,
    outer_products,
    output_hessian,
    outputs_of,
    read_as,
    rows_of,
    targets_for,
)
from shorthand import relative_error, split
from slu.baselines.scod import SCOD
from slu.core.readout import GRADIENT_READINGS
from slu.errors import DataError
from slu.sketches import build

WHOLE = 10_000  # rows of a sketch above p: nothing is sketched


@lru_cache(maxsize=16)
def curvature(kind: str, likelihood: str) -> Tensor:
    """The dense G of the 12 points."""
    return ggn(*dense(kind)[:2], likelihood)


def leading(matrix: Tensor, rank: int) -> Tensor:
    """U Λ Uᵀ (p, p) of the largest eigenvalues, none negative."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors[:, -rank:] * values[-rank:].clamp(min=0)) @ vectors[:, -rank:].T


def sketched(method: SCOD, matrix: Tensor) -> Tensor:
    """U Λ Uᵀ by the formulas of `SinglePass` with dense test matrices."""
    eye = torch.eye(len(matrix), dtype=torch.float64)
    first, second = (build(spec, dtype=torch.float64) @ eye for spec in method._tests())
    q = torch.linalg.qr((first @ matrix).T)[0].T
    core = torch.linalg.lstsq(second @ q.T, second @ matrix @ q.T).solution
    return q.T @ leading((core + core.T) / 2, method.rank) @ q


def assert_readings(score, kind: str, likelihood: str, low_rank: Tensor, tolerance: float) -> None:
    """Every reading is tr A (U Λ Uᵀ + α I)⁻¹ Aᵀ of its rows A."""
    alpha, queries = score.prior_precision, dense(kind)[2]
    inverse = torch.linalg.inv(low_rank + alpha * torch.eye(len(low_rank), dtype=torch.float64))
    for reading in GRADIENT_READINGS:
        rows = rows_of(kind, likelihood, reading)
        each, size = torch.einsum("bip,pq,biq->bi", rows, inverse, rows), rows.square().sum(-1)
        for per_output in (False, True):
            expected, length = (each, size) if per_output else (each.sum(-1), size.sum(-1))
            expected = read_as(reading, expected, length)
            scores = score(queries, reading=reading, per_output=per_output)
            torch.testing.assert_close(scores, expected, rtol=tolerance, atol=1e-14)


# The encoder with every likelihood comes below; here it would hold its whole curvature each time.
CASES = [(kind, each) for kind in ("mlp", "conv", "tied") for each in LIKELIHOODS] + [("encoder", "classification")]


@pytest.mark.parametrize(("kind", "likelihood"), CASES)
def test_from_p_rows_on_it_is_exact(kind, likelihood):
    model, inputs, queries, _ = dense(kind)
    matrix = curvature(kind, likelihood)
    method = SCOD(model, likelihood, rank=3, sketch_rows=len(matrix), prior_precision=0.5)
    score = method.fit(split(inputs, sizes=[5, 7]))
    values = torch.linalg.eigvalsh(matrix).flip(0)
    assert float(values[2] - values[3]) > 1e-3 * float(values[0])  # or the third direction is not defined
    np.testing.assert_allclose(score.eigenvalues, values[:3], rtol=1e-11)
    assert largest_angle(score.basis.T, leading_eigenvectors(matrix, 3)) < 1e-9
    assert_readings(score, kind, likelihood, leading(matrix, 3), 1e-9)
    assert score.readings == ("fisher", "variance", "relative", "fisher-relative")
    assert torch.equal(score(queries), score(queries, reading="fisher"))
    assert score.points == 12


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize(("kind", "rows"), [("conv", None), ("conv", 12), ("conv", 40), ("encoder", None)])
def test_below_it_is_the_formula_with_its_test_matrices(kind, rows, likelihood):
    model, inputs, _, _ = dense(kind)
    method = SCOD(model, likelihood, rank=3, sketch_rows=rows, prior_precision=0.5, seed=1)
    score = method.fit(split(inputs, sizes=[5, 7]))
    matrix = curvature(kind, likelihood)
    assert_readings(score, kind, likelihood, sketched(method, matrix), 1e-8)
    # Control: it is not the exact answer.
    low_rank = (score.basis.T * torch.from_numpy(score.eigenvalues)) @ score.basis
    assert relative_error(low_rank, leading(matrix, 3)) > 1e-3


@pytest.mark.parametrize(
    ("rank", "rows", "sizes"),
    [
        (3, None, (7, 15)),
        (1, None, (3, 7)),
        (3, 12, (5, 7)),
        (3, 23, (7, 16)),
        (3, 100, (33, 67)),
        (3, 183, (183, 183)),
    ],
)
def test_rows_are_split_between_range_and_action(rank, rows, sizes):
    method = SCOD(dense("conv")[0], "classification", rank=rank, sketch_rows=rows)
    first, second = method._tests()
    assert (first.size, second.size) == sizes
    assert first.kind == second.kind == ("identity" if sizes == (183, 183) else "block_srft")
    assert first.seed != second.seed or first.kind == "identity"


def test_the_two_test_matrices_are_drawn_apart():
    """Were Ψ to begin with Ω, C would be taken from the very products that Q was made of."""
    method = SCOD(dense("encoder")[0], "classification", rank=3)
    p = method.network.selection.count
    first, second = (build(spec) @ torch.eye(p) for spec in method._tests())
    first, second = (matrix / matrix.norm(dim=1, keepdim=True) for matrix in (first, second))
    assert float((first @ second.T).abs().max()) < 5 / p**0.5  # 105 pairs of independent directions
    assert not torch.equal(
        first, build(SCOD(dense("encoder")[0], "classification", rank=3, seed=1)._tests()[0]) @ torch.eye(p)
    )


SEEDS = range(6)


def captured(rows: int, seeds: range = SEEDS) -> float:
    """The mean share of the exact leading eigenvectors that the basis holds."""
    model, inputs, _, _ = dense("conv")
    exact = leading_eigenvectors(curvature("conv", "classification"), 3)
    shares = []
    for seed in seeds:
        basis = SCOD(model, "classification", rank=3, sketch_rows=rows, seed=seed).fit(inputs).basis
        shares.append(float((basis @ exact).square().sum()) / 3)
    return float(np.mean(shares))


def test_the_basis_comes_nearer_with_more_rows():
    shares = [captured(rows) for rows in (12, 22, 60)]
    assert shares[0] + 0.03 < shares[1] < shares[2] - 0.03
    assert shares[2] > 0.97
    assert captured(80, range(1)) > 1 - 1e-12  # 26 rows for the range of a curvature of rank 24
    # Controls: a random basis holds 3/183; other seeds differ by less than other sizes do.
    draw = torch.Generator().manual_seed(0)
    chance = torch.linalg.qr(torch.randn(183, 3, generator=draw, dtype=torch.float64))[0]
    exact = leading_eigenvectors(curvature("conv", "classification"), 3)
    assert float((chance.T @ exact).square().sum()) / 3 < 0.1
    assert abs(captured(60, range(50, 56)) - shares[2]) < 0.02


@pytest.mark.parametrize("likelihood", ["classification", "multilabel"])
@pytest.mark.parametrize("kind", ["mlp", "conv", "tied"])
def test_the_authors_factor_sketches_the_squared_hessian(kind, likelihood):
    model, inputs, _, _ = dense(kind)
    rows = jacobian(model, inputs)
    h = output_hessian(likelihood, outputs_of(model, inputs))
    squared = torch.einsum("bip,bij,bjk,bkq->pq", rows, h, h, rows)
    score = SCOD(model, likelihood, rank=3, sketch_rows=WHOLE, factor="hessian").fit(split(inputs, sizes=[5, 7]))
    # The score itself has the true L.
    assert_readings(score, kind, likelihood, leading(squared, 3), 1e-9)
    exact = SCOD(model, likelihood, rank=3, sketch_rows=WHOLE).fit(inputs)
    # H is nearly a multiple of I where labels are nearly even, and then only the eigenvalues differ.
    assert largest_angle(score.basis.T, exact.basis.T) > (0.01 if likelihood == "classification" else 1e-4)
    assert relative_error(torch.from_numpy(score.eigenvalues), torch.from_numpy(exact.eigenvalues)) > 0.3


def test_for_regression_with_unit_noise_both_factors_are_one():
    model, inputs, queries, _ = dense("mlp")
    first, second = (
        SCOD(model, "regression", rank=3, factor=factor).fit(inputs)(queries) for factor in ("exact", "hessian")
    )
    torch.testing.assert_close(first, second, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["mlp", "encoder"])
def test_how_it_relates_to_other_ways_to_write_it(kind):
    """The identities of the docstring, from basis and eigenvalues alone."""
    model, inputs, queries, rows = dense(kind)
    epsilon = 0.8
    alpha = 1 / (2 * epsilon**2)
    score = SCOD(model, "classification", rank=3, prior_precision=alpha).fit(inputs)
    values, u = torch.from_numpy(score.eigenvalues), score.basis.T
    weights = values / (values + alpha)
    eye = torch.eye(len(u), dtype=torch.float64)
    # SCOD's authors: half of it.
    covariance = torch.linalg.inv((u * values) @ u.T + eye / (2 * epsilon**2)) / 2
    factored = rows_of(kind, "classification", "fisher")
    own = torch.einsum("bip,pq,biq->b", factored, covariance, factored)
    torch.testing.assert_close(score(queries) / 2, own, rtol=1e-9, atol=0)
    # The sketching paper's norm, squared: another weight inside of the subspace.
    inside, length = (rows @ u).square().sum(1), rows.square().sum((1, 2))
    norm = ((eye - (u * weights) @ u.T) @ rows.mT).square().sum((1, 2))
    torch.testing.assert_close(norm, length - inside @ (1 - (1 - weights).square()), rtol=1e-9, atol=0)
    ours = alpha * score(queries, reading="variance")
    torch.testing.assert_close(ours, length - inside @ weights, rtol=1e-9, atol=0)
    torch.testing.assert_close(ours - norm, inside @ (weights * (1 - weights)), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_empirical_fisher_has_the_gradients_at_the_targets(likelihood):
    model, inputs, _, _ = dense("conv")
    targets = targets_for(likelihood)
    method = SCOD(model, likelihood, rank=2, sketch_rows=WHOLE, curvature="empirical-fisher")
    score = method.fit(split(inputs, targets, sizes=[5, 7]))
    assert_readings(score, "conv", likelihood, leading(outer_products(model, inputs, targets, likelihood), 2), 1e-9)
    with pytest.raises(DataError, match="needs targets"):
        method.fit(inputs)


@pytest.mark.parametrize("settings", [{}, {"curvature": "fisher"}, {"factor": "hessian"}], ids=str)
def test_any_split_into_batches_gives_the_same(settings):
    model, inputs, queries, _ = dense("conv")
    method = SCOD(model, "multilabel", rank=3, prior_precision=0.1, **settings)
    whole = method.fit(inputs)
    for sizes in ([1] * 12, [5, 7]):
        torch.testing.assert_close(method.fit(split(inputs, sizes=sizes))(queries), whole(queries), rtol=1e-8, atol=0)
    torch.testing.assert_close(whole([inputs[:1], inputs[1:8], inputs[8:]]), whole(inputs), rtol=1e-10, atol=0)


def test_same_seed_same_scores_and_another_seed_others():
    model, inputs, queries, _ = dense("conv")
    first, second, other = (SCOD(model, "classification", rank=3, seed=seed).fit(inputs)(queries) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.allclose(first, other, rtol=1e-3)


def test_the_papers_prior_is_that_of_a_mean():
    model, inputs, queries, _ = dense("mlp")
    score = SCOD(model, "classification", rank=2, prior_precision="paper").fit(inputs)
    assert score.method.prior_precision == "paper"
    assert score.prior_precision == pytest.approx(1 / (2 * 12 * 0.1**2))
    given = SCOD(model, "classification", rank=2, prior_precision=score.prior_precision).fit(inputs)
    assert torch.equal(score(queries), given(queries))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision_accumulates_in_single(dtype):
    model, inputs = network("conv")
    expected = SCOD(model, "classification", rank=3).fit(inputs)
    scores = expected(inputs)  # before the model is turned
    score = SCOD(model.to(dtype), "classification", rank=3).fit(inputs.to(dtype))
    assert score.basis.dtype == score(inputs.to(dtype)).dtype == torch.float32
    rough = 1e-4 if dtype == torch.float32 else 0.2
    np.testing.assert_allclose(score.eigenvalues, expected.eigenvalues, rtol=rough)
    assert relative_error(score(inputs.to(dtype)), scores) < rough
