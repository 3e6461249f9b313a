"""Energies by their formulas, and what the estimators make of them."""

import dataclasses

import pytest
import torch

from oracles import decaying
from shorthand import sketched_subspace
from slu.krylov import low_memory, start_vector
from slu.sketches import SketchSpec, build
from slu.subspace import ESTIMATORS, Energies

P, S, K = 400, 120, 15


@pytest.fixture(scope="module")
def subspace():
    matrix = decaying(P, 100, 3)
    sketch = build(SketchSpec("gaussian", P, S), dtype=torch.float64)
    return sketched_subspace(low_memory(matrix, start_vector(matrix, 0), K), K, sketch)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_energies_are_the_squared_lengths_of_the_two_parts(subspace):
    sketched, exact = draw(3, 4, S), draw(3, 4).square()
    energies = subspace.energies(exact, sketched)
    projector = subspace.basis.T @ subspace.basis
    torch.testing.assert_close(energies.exact, exact, rtol=0, atol=0)
    torch.testing.assert_close(energies.captured, (sketched @ projector).square().sum(-1))
    torch.testing.assert_close(energies.residual, (sketched @ (torch.eye(S) - projector)).square().sum(-1))
    torch.testing.assert_close(energies.captured + energies.residual, sketched.square().sum(-1))


def test_nearly_captured_vectors_keep_their_relative_accuracy(subspace):
    inside = draw(subspace.basis.shape[0]) @ subspace.basis
    outside = draw(S, seed=1)
    outside -= (outside @ subspace.basis.T) @ subspace.basis
    single = dataclasses.replace(subspace, basis=subspace.basis.float())
    vector = inside / inside.norm() + 1e-4 * outside / outside.norm()
    energies = single.energies(torch.ones(()), vector.float())
    # The residual is known to ε ≈ 1e-7 as a vector: 1e-3 of its length 1e-4, 1e-2 of its square with room.
    assert float(energies.residual) == pytest.approx(1e-8, rel=1e-2)
    # The control: as a difference of squares it drowns in the rounding of 1.
    difference = float(vector.float().square().sum() - energies.captured)
    assert abs(difference / 1e-8 - 1) > 0.5


def test_estimators_by_their_formulas():
    exact, captured, residual, reopened = (draw(5, seed=seed).square() for seed in range(4))
    energies = Energies(exact, captured, residual, reopened)
    torch.testing.assert_close(ESTIMATORS["difference"](energies, 1.7), exact - captured + reopened)
    torch.testing.assert_close(ESTIMATORS["residual"](energies, 1.7), 1.7 * residual + reopened)
    share = (1.7 * residual + reopened) / (captured + residual)
    torch.testing.assert_close(ESTIMATORS["ratio"](energies, 1.7), exact * share)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_all_agree_where_the_sketch_is_exact(name):
    captured, residual = draw(5, seed=1).square(), draw(5, seed=2).square()
    energies = Energies(captured + residual, captured, residual, torch.zeros(5))
    torch.testing.assert_close(ESTIMATORS[name](energies, 1.0), residual)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_scale_with_the_square_of_the_vector(name, subspace):
    sketched, exact = draw(6, S), draw(6).square() + 1
    small, large = (
        ESTIMATORS[name](subspace.energies(scale**2 * exact, scale * sketched), subspace.correction)
        for scale in (1.0, 7.0)
    )
    torch.testing.assert_close(large, 49 * small)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_zero_vectors_score_zero(name, subspace):
    energies = subspace.energies(torch.zeros(2, dtype=torch.float64), torch.zeros(2, S, dtype=torch.float64))
    assert torch.equal(ESTIMATORS[name](energies, subspace.correction), torch.zeros(2, dtype=torch.float64))


def test_sums_run_over_the_last_dimension():
    energies = Energies(*(draw(3, 4, seed=seed) for seed in range(4)))
    total = energies.sum()
    for name in ("exact", "captured", "residual"):
        torch.testing.assert_close(getattr(total, name), getattr(energies, name).sum(-1))


def test_trace_of_the_ratio_weighs_outputs_by_their_energy():
    """A zero output must not disturb the others, as a mean of shares would."""
    energies = Energies(*(torch.tensor([[value, 0.0]]) for value in (4.0, 1.0, 3.0, 0.0)))
    assert ESTIMATORS["ratio"](energies.sum(), 1.0).tolist() == [3.0]


def test_ratio_and_residual_are_never_negative(subspace):
    energies = subspace.energies(draw(1000).square(), draw(1000, S))
    for name in ("ratio", "residual"):
        assert float(ESTIMATORS[name](energies, subspace.correction).min()) >= 0
    assert float(ESTIMATORS["difference"](energies, subspace.correction).min()) < 0  # the control
