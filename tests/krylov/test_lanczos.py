"""Lanczos against the identity it must keep, against scipy, and at the ends of Krylov spaces."""

import weakref
from functools import partial

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator, eigsh

from oracles import decaying, ggn, krylov_basis, largest_angle, network
from slu.curvature import Curvature
from slu.errors import NumericalError, SettingError
from slu.gradients import Network
from slu.krylov import Tridiagonal, high_memory, low_memory, preconditioned, start_vector
from slu.likelihoods import Classification
from slu.parameters import select
from slu.sketches import SketchSpec, build

RECURRENCES = {
    "low": low_memory,
    "high": high_memory,
    "preconditioned": partial(preconditioned, high_memory_steps=5),
}
MATRICES = {
    "full rank, 3 decades": lambda: decaying(80, 80, 3),
    "rank 60, 8 decades": lambda: decaying(300, 60, 8),
    "indefinite": lambda: decaying(80, 80, 3) - decaying(80, 80, 2, seed=1),
    "large norm": lambda: 1e6 * decaying(80, 80, 3),
}


def run(recurrence, matrix, steps, seed=0):
    """All steps, V (p, k) in float64, and T."""
    all_steps = list(recurrence(matrix, start_vector(matrix, seed), steps))
    return all_steps, torch.stack([step.vector for step in all_steps], 1).double(), Tridiagonal.of(all_steps)


def norm(matrix):
    return float(torch.linalg.matrix_norm(matrix.double(), 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("kind", RECURRENCES)
def test_recurrence_keeps_its_identity_to_rounding(kind, matrix, dtype):
    matrix = MATRICES[matrix]().to(dtype)
    all_steps, basis, tridiagonal = run(RECURRENCES[kind], matrix, 40)
    assert len(all_steps) == 40
    left = matrix.double() @ basis
    right = basis @ torch.from_numpy(tridiagonal.dense())
    right[:, -1] += all_steps[-1].beta * all_steps[-1].following.double()
    # A dense product of length p rounds to about √p ε ‖G‖ (17 ε at p = 300); the recurrence adds a few more.
    bound = 20 * torch.finfo(dtype).eps * norm(matrix)
    assert float((left - right).norm(dim=0).max()) < bound


def test_identity_fails_without_what_was_removed():
    """Control: α and β alone are not the whole of T once a preconditioned run has lost orthogonality."""
    matrix = decaying(300, 60, 8).float()
    all_steps, basis, tridiagonal = run(RECURRENCES["preconditioned"], matrix, 60)
    tridiagonal.removed = [np.zeros(0)] * 60
    left = matrix.double() @ basis
    right = basis @ torch.from_numpy(tridiagonal.dense())
    right[:, -1] += all_steps[-1].beta * all_steps[-1].following.double()
    assert float((left - right).norm(dim=0).max()) > 20 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_high_memory_stays_orthonormal_and_low_memory_does_not(dtype):
    matrix = decaying(300, 60, 8).to(dtype)
    eye = torch.eye(40, dtype=torch.float64)
    _, held, _ = run(high_memory, matrix, 40)
    # Twice is enough: what is left is the rounding of one Gram-Schmidt round.
    assert float((held.T @ held - eye).abs().max()) < 10 * torch.finfo(dtype).eps
    _, free, _ = run(low_memory, matrix, 40)
    assert float((free.T @ free - eye).abs().max()) > 0.5  # the control: a direction came back


def test_low_memory_finds_ghosts():
    """The largest eigenvalue, simple in the matrix, appears several times among the Ritz values."""
    matrix = decaying(300, 60, 8).float()
    _, _, free = run(low_memory, matrix, 80)
    _, _, held = run(high_memory, matrix, 55)
    assert int((np.abs(free.eigh()[0] - 1) < 1e-4).sum()) > 1
    assert int((np.abs(held.eigh()[0] - 1) < 1e-4).sum()) == 1


def test_first_steps_of_preconditioned_are_held_and_later_ones_stay_orthogonal_to_them():
    matrix = decaying(300, 60, 8).float()
    _, basis, _ = run(RECURRENCES["preconditioned"], matrix, 60)
    overlap = basis.T @ basis - torch.eye(60, dtype=torch.float64)
    assert float(overlap[:5].abs().max()) < 10 * torch.finfo(torch.float32).eps
    assert float(overlap[5:, 5:].abs().max()) > 0.5  # the later ones lose it among themselves


@pytest.mark.parametrize("kind", RECURRENCES)
def test_space_is_the_krylov_space(kind):
    # Few enough steps that nothing has converged: then all three span one and the same space.
    matrix = decaying(300, 60, 3)
    _, basis, _ = run(RECURRENCES[kind], matrix, 10)
    dense = krylov_basis(matrix, start_vector(matrix, 0), 10)
    assert largest_angle(dense, torch.linalg.qr(basis)[0]) < 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["low", "high"])
def test_leading_ritz_values_agree_with_scipy(kind, dtype):
    # Preconditioned is left out: its α and β alone are not T (see the control above); the
    # subspace, which uses the whole of T, is held to the same values in tests/subspace.
    matrix = decaying(300, 60, 4)
    _, _, tridiagonal = run(RECURRENCES[kind], matrix.to(dtype), 45)
    wanted = eigsh(matrix.numpy(), 4, return_eigenvectors=False)[::-1]
    ritz = tridiagonal.eigh()[0]
    # Low-memory has ghosts between, some of them still on their way to an eigenvalue.
    nearest = ritz[np.abs(ritz[:, None] - wanted).argmin(0)]
    # A converged Ritz value is within rounding of an eigenvalue: eigenvalues move by ‖E‖ = O(ε ‖G‖).
    np.testing.assert_allclose(nearest, wanted, atol=50 * torch.finfo(dtype).eps, rtol=0)


def test_ritz_values_of_a_network_agree_with_scipy_and_with_the_dense_matrix():
    model, inputs = network("mlp")
    curvature = Curvature(Network(model, select(model)), Classification(), inputs)
    as_scipy = LinearOperator(
        curvature.shape, matvec=lambda v: (curvature @ torch.from_numpy(v).squeeze()).numpy(), dtype=np.float64
    )
    wanted = eigsh(as_scipy, 4, return_eigenvectors=False)[::-1]
    dense = torch.linalg.eigvalsh(ggn(model, inputs, "classification")).flip(0)[:4]
    _, _, tridiagonal = run(high_memory, curvature, 24)
    np.testing.assert_allclose(wanted, dense.numpy(), rtol=1e-9)
    np.testing.assert_allclose(tridiagonal.eigh()[0][:4], wanted, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["low", "high"])
@pytest.mark.parametrize(
    ("matrix", "most", "eigenvalues"),
    [
        (torch.eye(50), 1, [1.0]),
        (torch.zeros(50, 50), 1, [0.0]),
        (torch.diag(torch.tensor([2.0, 1.0] + [0.0] * 48)), 3, [2.0, 1.0]),
    ],
    ids=["identity", "zero", "rank 2"],
)
def test_exhausted_space_ends_the_iteration(kind, dtype, matrix, most, eigenvalues):
    matrix = matrix.to(dtype)
    all_steps, basis, tridiagonal = run(RECURRENCES[kind], matrix, 20)
    # Rounding may grant one step more before what is left is rounding alone.
    assert len(all_steps) <= most + 1
    assert all_steps[-1].beta == 0.0
    assert tridiagonal.coupling == 0.0
    assert all_steps[-1].following is None
    assert all(step.following is not None and step.beta > 0 for step in all_steps[:-1])
    ritz = _distinct(tridiagonal.eigh()[0])[: len(eigenvalues)]
    np.testing.assert_allclose(ritz, eigenvalues, atol=20 * torch.finfo(dtype).eps)
    assert bool(torch.isfinite(basis).all())


def test_a_start_inside_an_invariant_subspace_stays_there():
    matrix = torch.diag(torch.arange(10.0, 0.0, -1.0))
    start = torch.zeros(10)
    start[[0, 3, 7]] = 3**-0.5
    all_steps = list(high_memory(matrix, start, 10))
    assert len(all_steps) == 3
    np.testing.assert_allclose(Tridiagonal.of(all_steps).eigh()[0], [10.0, 7.0, 3.0], rtol=1e-6)


@pytest.mark.parametrize("kind", RECURRENCES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_products_that_are_not_finite_are_reported(kind, bad):
    matrix = decaying(30, 30, 1)
    matrix[3, 4] = bad
    with pytest.raises(NumericalError, match=r"step 1 .*not finite"):
        list(RECURRENCES[kind](matrix, start_vector(matrix, 0), 10))


@pytest.mark.parametrize("kind", RECURRENCES)
def test_same_seed_same_numbers_and_another_seed_others(kind):
    matrix = decaying(60, 40, 3).float()
    first, second, other = (run(RECURRENCES[kind], matrix, 12, seed) for seed in (3, 3, 4))
    assert torch.equal(first[1], second[1])
    assert first[2].alphas == second[2].alphas
    assert not torch.equal(first[1], other[1])


@pytest.mark.parametrize("steps", [-1, 11])
def test_more_held_steps_than_steps_are_refused(steps):
    matrix = torch.eye(20)
    with pytest.raises(SettingError, match="between 0 and the rank 10"):
        preconditioned(matrix, start_vector(matrix, 0), 10, steps)


def test_nothing_held_is_low_memory_and_all_held_is_high_memory():
    matrix = decaying(60, 40, 6).float()
    for held, same in ((0, low_memory), (30, high_memory)):
        _, basis, _ = run(partial(preconditioned, high_memory_steps=held), matrix, 30)
        assert torch.equal(basis, run(same, matrix, 30)[1])


class _Watched:
    """An operator that counts how many of its results are alive while it works."""

    def __init__(self, matrix):
        self.matrix, self.shape, self.dtype, self.device = matrix, matrix.shape, matrix.dtype, matrix.device
        self.results = []
        self.alive = []

    def __matmul__(self, vector):
        result = self.matrix @ vector
        self.watch(result)
        self.alive.append(sum(reference() is not None for reference in self.results))
        return result

    def watch(self, vector):
        self.results.append(weakref.ref(vector))


def test_low_memory_holds_three_vectors_while_the_product_runs():
    operator = _Watched(decaying(40, 40, 2))
    start = start_vector(operator, 0)
    operator.watch(start)
    stream = low_memory(operator, start, 20)
    del start
    for _step in stream:
        pass
    # v_{j-1}, v_j and the product's result; the start vector counts like any other.
    assert max(operator.alive) == 3


def test_keeping_the_steps_makes_the_count_grow():
    """Control: the count sees vectors that somebody holds."""
    operator = _Watched(decaying(40, 40, 2))
    steps = list(low_memory(operator, start_vector(operator, 0), 20))
    assert len(steps) == 20
    assert max(operator.alive) >= 20


def test_start_vector_is_a_unit_vector_of_the_operators_type():
    for dtype in (torch.float32, torch.float64):
        start = start_vector(torch.zeros(1000, 1000, dtype=dtype), 0)
        assert start.dtype == dtype
        assert abs(float(start.norm()) - 1) < 10 * torch.finfo(dtype).eps
    assert torch.equal(start_vector(torch.zeros(9, 9), 1), start_vector(torch.zeros(9, 9), 1))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_start_vector_does_not_come_from_the_sketchs_stream(seed):
    p = 4000
    dense = build(SketchSpec("gaussian", p, 8, seed)) @ torch.eye(p)
    start = start_vector(torch.zeros(p, 1).expand(p, p), seed)
    # Rows of S, and runs of p numbers in the order of its transpose: whichever way it was drawn.
    rows = torch.cat([dense, dense.T.reshape(8, p)])
    cosines = rows @ start / rows.norm(dim=1)
    # Independent directions have cosines of 1/√p = 0.016; five of these is 0.08.
    assert float(cosines.abs().max()) < 5 * p**-0.5


def _distinct(values):
    """Largest first, ghosts of one eigenvalue counted once."""
    kept = []
    for value in values:
        if not kept or kept[-1] - value > 1e-3 * kept[-1]:
            kept.append(value)
    return np.array(kept)
