"""Sketched Lanczos against the dense matrix it never sees."""

import weakref

import numpy as np
import pytest
import torch

from layouts import layout_of
from oracles import decaying, krylov_basis, largest_angle
from shorthand import sketched_subspace
from slu.errors import NumericalError, SettingError
from slu.krylov import Tridiagonal, low_memory, preconditioned, start_vector
from slu.sketches import SKETCHES, SketchSpec, build
from slu.subspace.sketched import tolerance

P, S, K = 800, 200, 30
DTYPES = [torch.float32, torch.float64]


@pytest.fixture(scope="module")
def matrix():
    return decaying(P, 200, 6)


@pytest.fixture(scope="module")
def eigenvalues(matrix):
    return torch.linalg.eigvalsh(matrix).flip(0).numpy()


def make_sketch(kind, dtype=torch.float64, seed=1):
    return build(SketchSpec(kind, P, P if kind == "identity" else S, seed, layout=layout_of(P)), dtype=dtype)


def stream(matrix, steps=K, held=0):
    start = start_vector(matrix, 0)
    return preconditioned(matrix, start, steps, held) if held else low_memory(matrix, start, steps)


@pytest.mark.parametrize("kind", SKETCHES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_basis_has_orthonormal_rows_in_the_span_of_the_sketched_vectors(matrix, kind, dtype):
    sketch = make_sketch(kind, dtype)
    steps = list(stream(matrix.to(dtype)))  # once: on some machines a product depends on where a vector is in memory
    subspace = sketched_subspace(iter(steps), K, sketch)
    rank = len(subspace.basis)
    assert subspace.basis.shape == (rank, sketch.shape[0])
    assert subspace.basis.dtype == dtype
    product = subspace.basis.double() @ subspace.basis.double().T
    # Lengths and cosines of up to p rounded numbers: √p ε = 28 ε.
    assert float((product - torch.eye(rank)).abs().max()) < 30 * torch.finfo(dtype).eps
    vectors = torch.stack([step.vector for step in steps], 1)
    left, singular, _ = torch.linalg.svd((sketch @ vectors).double(), full_matrices=False)
    kept = int((singular > tolerance(dtype) * singular[0]).sum())
    assert kept == rank + subspace.convergence.null
    if not subspace.convergence.null:
        # The last direction that is kept is as uncertain as the rounding is large beside its singular value.
        most = 60 * torch.finfo(dtype).eps * float(singular[0] / singular[kept - 1])
        assert largest_angle(left[:, :kept], subspace.basis.double().T) < most < 0.1


def _compressed(matrix, sketch):
    """C, the matrix of G in the basis V M that is orthonormal through the sketch, and V M; built plainly."""
    steps = list(stream(matrix))
    vectors = torch.stack([step.vector for step in steps], 1)
    sketched = (sketch @ vectors).numpy()
    after = steps[-1].beta * (sketch @ steps[-1].following).numpy()
    factor = np.linalg.inv(np.linalg.cholesky(sketched.T @ sketched)).T
    image = sketched @ Tridiagonal.of(steps).dense()
    image[:, -1] += after
    return factor.T @ sketched.T @ image @ factor, vectors @ torch.from_numpy(factor)


@pytest.mark.parametrize("kind", SKETCHES)
def test_converged_ritz_values_are_exact_through_the_sketch(matrix, eigenvalues, kind):
    wanted = eigenvalues[:3]
    sketch = make_sketch(kind)
    subspace = sketched_subspace(stream(matrix), K, sketch).convergence
    assert (subspace.residuals[:3] < 1e-4).all()
    # The error of a Ritz value of a matrix that is not symmetric is at most about its residual.
    np.testing.assert_allclose(subspace.ritz_values[:3], wanted, atol=1e-4)
    if kind != "identity":
        # The control: symmetrized, the same matrix is wrong by the sketch's own error √(k/s).
        small, _ = _compressed(matrix, sketch)
        symmetric = np.sort(np.linalg.eigvalsh(0.5 * (small + small.T)))[::-1][:3]
        assert np.abs(symmetric - wanted).max() > 1e-3


@pytest.mark.parametrize("kind", SKETCHES)
def test_residuals_are_those_of_the_dense_matrix_up_to_the_sketchs_error(matrix, kind):
    """Ritz pairs differ through the sketch, so y itself is rebuilt from the same combination of V."""
    sketch = make_sketch(kind)
    subspace = sketched_subspace(stream(matrix), K, sketch)
    small, basis = _compressed(matrix, sketch)
    values, directions = np.linalg.eig(small)
    order = np.argsort(-np.abs(values))
    values, directions = np.real(values[order]), np.real(directions[:, order])
    ritz = basis @ torch.from_numpy(directions)
    dense = (matrix @ ritz - ritz * torch.from_numpy(values)).norm(dim=0).numpy()
    np.testing.assert_allclose(subspace.convergence.ritz_values, values, atol=1e-6)
    # ‖S x‖ = ‖x‖ (1 ± √(2/s)) for one vector, four standard deviations: 1 ± 0.4.
    clear = dense > 1e-6
    assert clear.sum() > 10
    np.testing.assert_allclose(subspace.convergence.residuals[clear] / dense[clear], 1, atol=4 * (2 / S) ** 0.5)


def test_identity_sketch_gives_the_krylov_space_itself(matrix):
    subspace = sketched_subspace(stream(matrix, 12), 12, make_sketch("identity"))
    assert subspace.correction == 1.0
    assert largest_angle(krylov_basis(matrix, start_vector(matrix, 0), 12), subspace.basis.T) < 1e-8


def test_ghosts_are_counted_and_preconditioning_has_fewer(matrix):
    sketch = make_sketch("gaussian", torch.float32)
    subspaces = [sketched_subspace(stream(matrix.float(), 100, held), 100, sketch) for held in (0, 20)]
    free, held = (subspace.convergence for subspace in subspaces)
    for subspace, convergence in zip(subspaces, (free, held), strict=True):
        assert convergence.steps == 100
        assert len(subspace.basis) == 100 - convergence.ghosts - convergence.null
        assert convergence.orthogonality > 0.5
    assert free.ghosts > held.ghosts > 0
    assert free.singular_values[0] > 1 > tolerance(torch.float32) > free.singular_values[-1]


def test_orthogonal_vectors_show_cosines_of_the_sketchs_size(matrix):
    subspace = sketched_subspace(stream(matrix, 8), 8, make_sketch("gaussian")).convergence
    # The largest of 28 cosines with standard deviation 1/√s = 0.06.
    assert 0.02 < subspace.orthogonality < 0.3
    assert not subspace.exhausted


@pytest.mark.parametrize("dtype", DTYPES)
def test_exhausted_space_is_reported_and_right(dtype):
    matrix = torch.zeros(60, 60, dtype=dtype)
    matrix[0, 0], matrix[1, 1] = 2.0, 1.0
    sketch = build(SketchSpec("gaussian", 60, 40), dtype=dtype)
    subspace = sketched_subspace(stream(matrix, 20), 20, sketch)
    assert subspace.convergence.exhausted
    assert (subspace.convergence.steps, len(subspace.basis), subspace.convergence.null) == (3, 2, 1)
    np.testing.assert_allclose(subspace.convergence.ritz_values, [2.0, 1.0], rtol=1e-5)


class TwoNumbers:
    """diag(2, 1, 0, 0, …) as an operator, so that p may be large."""

    def __init__(self, size, dtype):
        self.shape, self.dtype, self.device = (size, size), dtype, torch.device("cpu")

    def __matmul__(self, vector):
        result = torch.zeros_like(vector)
        result[0], result[1] = 2 * vector[0], vector[1]
        return result


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_past_the_end_of_the_space_do_no_harm(dtype):
    """Rounding may hide the end; what follows are ghosts and noise, and the two directions stay exact."""
    past = 0
    for size in (1500, 6000, 20_000):
        for seed in range(6):
            operator = TwoNumbers(size, dtype)
            sketch = build(SketchSpec("gaussian", size, 40), dtype=dtype)
            subspace = sketched_subspace(low_memory(operator, start_vector(operator, seed), 20), 20, sketch)
            past += subspace.convergence.steps == 20
            # float32 keeps up to two directions of noise whose Ritz values are just above its rounding.
            assert len(subspace.basis) <= (4 if dtype == torch.float32 else 2)
            np.testing.assert_allclose(subspace.convergence.ritz_values[:2], [2.0, 1.0], rtol=1e-4)
            leading = torch.eye(2, size, dtype=dtype)
            inside = subspace.energies(torch.ones(2), (sketch @ leading.T).T)
            assert float((inside.residual / (inside.residual + inside.captured)).max()) < 1e-6
    assert past > 0  # the case is what it should be


def test_zero_matrix_says_that_there_is_no_curvature():
    with pytest.raises(NumericalError, match="zero in every direction"):
        sketched_subspace(stream(torch.zeros(P, P)), K, make_sketch("hashed", torch.float32))


@pytest.mark.parametrize("held", [0, 10])
@pytest.mark.parametrize("keep", [0.9, 0.5, 1.0])
def test_keep_is_the_authors_svd(matrix, keep, held):
    sketch = make_sketch("gaussian")
    subspace = sketched_subspace(stream(matrix, held=held), K, sketch, keep=keep)
    steps = list(stream(matrix, held=held))
    tridiagonal = Tridiagonal.of(steps)
    plain = np.diag(tridiagonal.alphas) + np.diag(tridiagonal.betas[:-1], 1) + np.diag(tridiagonal.betas[:-1], -1)
    values, vectors = np.linalg.eigh(plain)
    sketched = torch.stack([sketch @ step.vector for step in steps], 1).numpy()
    left = np.linalg.svd((sketched @ vectors) * values, full_matrices=False)[0][:, : int(keep * K)]
    assert subspace.basis.shape == (int(keep * K), S)
    assert largest_angle(torch.from_numpy(left), subspace.basis.T) < 1e-6
    assert len(subspace.basis) == int(keep * K)


@pytest.mark.parametrize("keep", [0.0, -0.5, 1.1])
def test_keep_must_be_a_share(matrix, keep):
    with pytest.raises(SettingError, match=r"share in \(0, 1\]"):
        sketched_subspace(stream(matrix), K, make_sketch("gaussian"), keep=keep)


def test_keep_that_leaves_nothing_is_refused(matrix):
    with pytest.raises(SettingError, match="leaves none of 2 steps"):
        sketched_subspace(stream(matrix, 2), 2, make_sketch("gaussian"), keep=0.4)


def test_vectors_are_let_go_as_they_come(matrix):
    """A consumer in front of the subspace never sees more than two of them alive."""
    references, counts = [], []

    def watched():
        for step in stream(matrix):
            references.append(weakref.ref(step.vector))
            counts.append(sum(reference() is not None for reference in references))
            yield step

    sketched_subspace(watched(), K, make_sketch("hashed"))
    assert len(counts) == K
    # v_j, and v_{j-1} where the step before is still at hand.
    assert max(counts) <= 2


def test_eigenvalues_are_the_ritz_values_unless_keep_mixed_them(matrix):
    plain, kept = (sketched_subspace(stream(matrix), K, make_sketch("shift"), keep=keep) for keep in (None, 0.9))
    np.testing.assert_array_equal(plain.eigenvalues, plain.convergence.ritz_values)
    assert len(plain.eigenvalues) == len(plain.basis) and plain.eigenvalues.dtype == np.float64
    assert kept.eigenvalues is None and len(kept.convergence.ritz_values)
