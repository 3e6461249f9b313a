"""T as a small matrix: layout, eigenvalues, and what reorthogonalization adds to it."""

import numpy as np
import pytest
import torch

from slu.krylov import Step, Tridiagonal


def step(alpha, beta, removed=()):
    return Step(torch.zeros(1), alpha, beta, torch.zeros(1), np.array(removed, dtype=float))


@pytest.fixture
def three():
    return Tridiagonal.of([step(3.0, 1.0), step(2.0, 0.5), step(1.0, 0.25)])


def test_layout(three):
    assert len(three) == 3
    assert three.coupling == 0.25
    np.testing.assert_array_equal(three.dense(), [[3.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]])


def test_eigenpairs_largest_first(three):
    values, vectors = three.eigh()
    np.testing.assert_allclose(values, np.linalg.eigvalsh(three.dense())[::-1], rtol=1e-14)
    np.testing.assert_allclose(vectors * values @ vectors.T, three.dense(), atol=1e-14)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(3), atol=1e-14)


def test_what_was_removed_goes_into_the_steps_column():
    tridiagonal = Tridiagonal.of([step(3.0, 1.0, [0.125]), step(2.0, 0.5, [0.25, -0.5])])
    np.testing.assert_array_equal(tridiagonal.dense(), [[3.125, 1.25], [1.0, 1.5]])


def test_one_step():
    tridiagonal = Tridiagonal.of([step(3.0, 0.0)])
    np.testing.assert_array_equal(tridiagonal.dense(), [[3.0]])
    values, vectors = tridiagonal.eigh()
    assert values.tolist() == [3.0]
    assert abs(vectors[0, 0]) == 1.0


def test_growing_equals_building_at_once(three):
    grown = Tridiagonal()
    for alpha, beta in zip(three.alphas, three.betas, strict=True):
        grown.add(step(alpha, beta))
    np.testing.assert_array_equal(grown.dense(), three.dense())


def test_dense_is_float64(three):
    assert three.dense().dtype == np.float64
