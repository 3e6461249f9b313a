"""The rank-revealing basis without a sketch: orthonormal, the right span, the right counts."""

import numpy as np
import pytest
import torch

from oracles import decaying, krylov_basis, largest_angle
from slu.errors import NumericalError
from slu.krylov import Step, Tridiagonal, high_memory, low_memory, preconditioned, start_vector
from slu.sketches import SketchSpec, build
from slu.subspace import orthonormal_rows, reveal
from slu.subspace.basis import gram
from slu.subspace.sketched import _eigenpairs, tolerance

DTYPES = [torch.float32, torch.float64]


def rows_of(matrix, steps, recurrence=low_memory):
    """B (k + 1, p) with v₊ last, and T."""
    stream = list(recurrence(matrix, start_vector(matrix, 0), steps))
    last = stream[-1].following
    rows = [step.vector for step in stream] + [torch.zeros_like(stream[0].vector) if last is None else last]
    return torch.stack(rows), Tridiagonal.of(stream)


def revealed_basis(matrix, steps, recurrence=low_memory):
    """The convergence, and the basis as columns (p, r)."""
    rows, tridiagonal = rows_of(matrix, steps, recurrence)
    combinations, convergence = reveal(gram(rows), tridiagonal, rows.dtype)
    return convergence, orthonormal_rows(rows.clone(), combinations).T, rows[:-1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("steps", "ghosts"), [(12, False), (60, True)])
def test_basis_is_orthonormal_and_spans_the_lanczos_vectors(dtype, steps, ghosts):
    matrix = decaying(300, 300, 6).to(dtype)
    convergence, basis, vectors = revealed_basis(matrix, steps)
    assert (convergence.ghosts > 0) == ghosts
    rank = basis.shape[1]
    assert rank == steps - convergence.ghosts - convergence.null
    # Lengths and cosines of p rounded numbers: √p ε, 17 ε here.
    assert float((basis.double().T @ basis.double() - torch.eye(rank)).abs().max()) < 30 * torch.finfo(dtype).eps
    left, singular, _ = torch.linalg.svd(vectors.double().T, full_matrices=False)
    kept = int((singular > tolerance(dtype) * singular[0]).sum())
    assert kept == rank
    # The last kept direction has σ ≥ √ε, and the Gram matrix in float64 knows it to 1e-16/σ².
    assert largest_angle(left[:, :kept], basis.double()) < max(1e-16 / tolerance(dtype) ** 2, 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_qr_fills_ghosts_with_noise(dtype):
    """Control: QR without a tolerance has as many columns as steps, most of them no part of the span."""
    matrix = decaying(300, 300, 6).to(dtype)
    convergence, basis, vectors = revealed_basis(matrix, 60)
    plain = torch.linalg.qr(vectors.double().T)[0]
    assert plain.shape[1] - basis.shape[1] == convergence.ghosts > 0


def test_leading_eigenvectors_lie_in_the_span_despite_ghosts():
    matrix = decaying(300, 300, 6)
    _, basis, _ = revealed_basis(matrix.float(), 60)
    leading = torch.linalg.eigh(matrix)[1].flip(1)[:, :15]
    outside = leading - basis.double() @ (basis.double().T @ leading)
    # A direction that float32 vectors carry with σ ≥ √ε is known to ε/σ = √ε.
    assert float(outside.norm(dim=0).max()) < 1e-3


@pytest.mark.parametrize(
    "recurrence", [low_memory, high_memory, lambda g, v, k: preconditioned(g, v, k, 8)], ids=["low", "high", "pre"]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_converged_ritz_values_are_eigenvalues(recurrence, dtype):
    matrix = decaying(300, 60, 4)
    convergence, _, _ = revealed_basis(matrix.to(dtype), 45, recurrence)
    wanted = torch.linalg.eigvalsh(matrix).flip(0)[:4].numpy()
    np.testing.assert_allclose(convergence.ritz_values[:4], wanted, atol=100 * torch.finfo(dtype).eps)


def test_ritz_values_and_residuals_are_those_of_the_dense_projection():
    matrix = decaying(300, 300, 4)
    convergence, _, _ = revealed_basis(matrix, 20)
    basis = krylov_basis(matrix, start_vector(matrix, 0), 20)
    values, vectors = torch.linalg.eigh(basis.T @ matrix @ basis)
    ritz = basis @ vectors
    residuals = (matrix @ ritz - ritz * values).norm(dim=0).flip(0)
    np.testing.assert_allclose(convergence.ritz_values, values.flip(0), rtol=1e-9)
    np.testing.assert_allclose(convergence.residuals, residuals, rtol=1e-6, atol=1e-9)


def test_indefinite_matrix_keeps_negative_directions_ordered_by_size():
    matrix = decaying(200, 200, 3) - 2 * decaying(200, 200, 3, seed=5)
    convergence, _, _ = revealed_basis(matrix, 30)
    values = torch.linalg.eigvalsh(matrix)
    assert convergence.ritz_values[0] == pytest.approx(float(values[0]), rel=1e-9)  # about -2, the largest in size
    assert (np.diff(np.abs(convergence.ritz_values)) <= 1e-12).all()
    assert (convergence.ritz_values > 0).any()


def _constructed(columns, alphas):
    """Decoupled steps: G V = V diag(α) with V made of unit vectors."""
    eye = torch.eye(6, dtype=torch.float64)
    steps = [Step(eye[c], a, 0.0, None, np.zeros(0)) for c, a in zip(columns, alphas, strict=True)]
    rows = torch.stack([step.vector for step in steps] + [torch.zeros(6, dtype=torch.float64)])
    return reveal(gram(rows), Tridiagonal.of(steps), torch.float64)


@pytest.mark.parametrize(
    ("columns", "alphas", "ghosts", "null", "ritz"),
    [
        ([0, 1, 2], [3.0, 2.0, 1.0], 0, 0, [3.0, 2.0, 1.0]),
        ([0, 1, 0], [3.0, 2.0, 3.0], 1, 0, [3.0, 2.0]),
        ([0, 1, 0, 1, 0], [3.0, 2.0, 3.0, 2.0, 3.0], 3, 0, [3.0, 2.0]),
        ([0, 1, 2], [3.0, 2.0, 0.0], 0, 1, [3.0, 2.0]),
        ([0, 1, 0, 2], [3.0, -4.0, 3.0, 0.0], 1, 1, [-4.0, 3.0]),
        ([0], [0.0], 0, 1, []),
    ],
    ids=["none", "one ghost", "three ghosts", "one null", "one of each, negative", "nothing"],
)
def test_counts_on_constructed_cases(columns, alphas, ghosts, null, ritz):
    _, convergence = _constructed(columns, alphas)
    assert (convergence.ghosts, convergence.null) == (ghosts, null)
    np.testing.assert_allclose(convergence.ritz_values, ritz, rtol=1e-12)
    np.testing.assert_allclose(convergence.residuals, np.zeros(len(ritz)), atol=1e-7)
    assert convergence.orthogonality == pytest.approx(1.0 if ghosts else 0.0, abs=1e-12)
    assert len(convergence.singular_values) == len(columns)
    assert (np.diff(convergence.singular_values) <= 0).all()


def test_repeated_eigenvalues_do_not_lose_directions():
    """Two equal Ritz values: whichever eigenvectors the solver picks, the span is whole."""
    combinations, convergence = _constructed([0, 1, 2, 3], [2.0, 2.0, 2.0, 0.0])
    assert convergence.null == 1
    np.testing.assert_allclose(combinations @ combinations.T, np.diag([1.0, 1, 1, 0]), atol=1e-12)


def test_conjugate_pairs_do_not_lose_directions():
    """A compressed matrix with a complex pair and a null direction: the space of the pair is kept whole."""
    values, vectors = _eigenpairs(np.array([[1.0, -0.1, 0.0], [0.1, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    np.testing.assert_allclose(values, [1.0, 1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=0), 1.0)
    assert np.linalg.matrix_rank(vectors, tol=1e-6) == 3
    kept = np.linalg.qr(vectors)[0][:, :2]
    np.testing.assert_allclose(kept @ kept.T, np.diag([1.0, 1.0, 0.0]), atol=1e-12)


def test_sketch_hardly_longer_than_the_rank_loses_null_directions_only():
    """Several conjugate pairs beside null directions: every eigenvector stays captured."""
    matrix = decaying(300, 60, 1)
    sketch = build(SketchSpec("gaussian", 300, 75, seed=1), dtype=torch.float64)
    rows, tridiagonal = rows_of(matrix, 65)
    sketched = (sketch @ rows.T).T.contiguous()
    assert (np.linalg.eigvals(_compressed(sketched, tridiagonal)).imag != 0).any()  # the case is what it should be
    combinations, convergence = reveal(gram(sketched), tridiagonal, torch.float64)
    assert convergence.null > 0
    basis = orthonormal_rows(sketched, combinations)
    vectors = (sketch @ torch.linalg.eigh(matrix)[1].flip(1)[:, :5]).T
    outside = vectors - (vectors @ basis.T) @ basis
    assert float((outside.norm(dim=1) / vectors.norm(dim=1)).max()) < 1e-6


def _compressed(sketched, tridiagonal):
    """C, built plainly in the basis of a QR decomposition."""
    k = len(tridiagonal)
    left, right = np.linalg.qr(sketched[:k].T.numpy())
    image = sketched[:k].T.numpy() @ tridiagonal.dense()
    image[:, -1] += tridiagonal.coupling * sketched[k].numpy()
    return left.T @ image @ np.linalg.inv(right)


def test_start_outside_the_range_is_dropped_as_null():
    matrix = decaying(200, 5, 1)
    convergence, basis, _ = revealed_basis(matrix, 20)
    assert basis.shape[1] == 5
    assert convergence.null >= 1
    assert largest_angle(torch.linalg.eigh(matrix)[1].flip(1)[:, :5], basis) < 1e-6


def test_gram_is_that_of_float64_over_many_chunks():
    rows = torch.randn(5, 5000, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(gram(rows), (rows.double() @ rows.double().T).numpy(), rtol=1e-13, atol=1e-10)


def test_gram_refuses_what_is_not_finite():
    rows = torch.ones(3, 2000)
    rows[1, 1500] = float("nan")
    with pytest.raises(NumericalError, match="NaN or infinity"):
        gram(rows)


@pytest.mark.parametrize(("kept", "in_place"), [(9, True), (6, True), (5, False), (4, False)])
def test_basis_is_written_over_the_rows_and_copied_only_to_let_them_go(kept, in_place):
    rows = torch.randn(10, 3000, generator=torch.Generator().manual_seed(0))
    before = rows[:9].clone()
    basis = orthonormal_rows(rows, np.linalg.qr(np.random.default_rng(0).normal(size=(9, kept)))[0])
    assert basis.shape == (kept, 3000)
    assert (basis.data_ptr() == rows.data_ptr()) == in_place
    if not in_place:
        assert basis.untyped_storage().nbytes() == kept * 3000 * 4
    # The span is that of the combinations of the rows as they were.
    outside = basis - basis @ torch.linalg.pinv(before) @ before
    assert float(outside.abs().max()) < 1e-5
