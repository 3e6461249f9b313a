"""Directions that a ridge leaves open in part: the dense formula, its two ends, and no bias through a sketch."""

import numpy as np
import pytest
import torch

from oracles import decaying
from shorthand import sketched_subspace
from slu.errors import SettingError
from slu.krylov import low_memory, start_vector
from slu.sketches import SketchSpec, build
from slu.subspace import ESTIMATORS, SketchedSubspace

P, K = 300, 20
RIDGES = (0.001, 0.03, 0.5)


def eigenpairs(factor=1.0):
    """K eigenvalues over three decades and their vectors (K, P)."""
    values, vectors = torch.linalg.eigh(factor * decaying(P, K, 3))
    return values[-K:].flip(0), vectors[:, -K:].flip(1).T.contiguous()


def subspace_of(kind="identity", size=P, seed=0, factor=1.0):
    """The exact eigenvectors, seen through a sketch."""
    values, vectors = eigenpairs(factor)
    sketch = build(SketchSpec(kind, P, size, seed), dtype=torch.float64)
    basis = torch.linalg.qr(sketch @ vectors.T)[0].T.contiguous()
    return SketchedSubspace(basis, values.numpy(), sketch.correction(K)), sketch


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scored(subspace, sketched, exact, ridge, estimator="ratio"):
    energies = subspace.energies(exact, sketched, ridge)
    return ESTIMATORS[estimator](energies, subspace.correction_with(ridge))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("ridge", RIDGES)
def test_it_is_the_posterior_variance_of_the_dense_formula(ridge, estimator):
    subspace, _ = subspace_of()
    dense, vectors = decaying(P, K, 3), draw(6, P)
    alpha = ridge * torch.trace(dense)
    expected = alpha * (vectors @ torch.linalg.inv(dense + alpha * torch.eye(P)) * vectors).sum(-1)
    actual = scored(subspace, vectors, vectors.square().sum(-1), ridge, estimator)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=0)


def test_without_a_ridge_it_is_the_projection():
    subspace, _ = subspace_of()
    vectors = draw(6, P)
    outside = vectors - vectors @ subspace.basis.T @ subspace.basis
    actual = scored(subspace, vectors, vectors.square().sum(-1), 0.0)
    torch.testing.assert_close(actual, outside.square().sum(-1))
    assert subspace.correction_with(0.0) == subspace.correction
    assert torch.equal(subspace.openness(0.0), torch.zeros(len(subspace.basis), dtype=torch.float64))


def test_an_endless_ridge_leaves_everything_open():
    subspace, sketch = subspace_of("gaussian", 100)
    vectors = draw(6, P)
    exact = vectors.square().sum(-1)
    torch.testing.assert_close(scored(subspace, (sketch @ vectors.T).T, exact, 1e12), exact)


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_the_unit_of_the_curvature_does_not_matter(factor):
    plain, _ = subspace_of()
    other, _ = subspace_of(factor=factor)
    torch.testing.assert_close(other.openness(0.03), plain.openness(0.03), rtol=1e-6, atol=0)


def test_no_bias_through_a_sketch():
    """Mean over 200 sketches against the exact score; the mean's own deviation is the yardstick, with a control."""
    exact_subspace, _ = subspace_of()
    vector = draw(P, seed=5)
    length = vector.square().sum()
    expected = float(scored(exact_subspace, vector, length, 0.1))
    right, naive = [], []
    for seed in range(200):
        subspace, sketch = subspace_of("gaussian", 60, seed)
        energies = subspace.energies(length, sketch @ vector, 0.1)
        right.append(float(ESTIMATORS["residual"](energies, subspace.correction_with(0.1))))
        naive.append(float(ESTIMATORS["residual"](energies, subspace.correction)))
    # The basis comes from the same sketch and its lengths, so a bias of order 1/s of the score stays.
    error = 4 * np.std(right) / np.sqrt(len(right)) + expected / 60
    assert abs(np.mean(right) - expected) < error
    assert abs(np.mean(naive) - expected) > error


def test_kept_noise_directions_have_no_eigenvalues():
    dense = decaying(P, 15, 3)
    sketch = build(SketchSpec("gaussian", P, 200), dtype=torch.float64)
    subspace = sketched_subspace(low_memory(dense, start_vector(dense, 0), 60), 60, sketch, keep=0.9)
    assert subspace.eigenvalues is None and len(subspace.basis) != len(subspace.convergence.ritz_values)
    with pytest.raises(SettingError, match="keep"):
        subspace.openness(0.03)
