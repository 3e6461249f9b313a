"""Runs that look at the curvature, and the synthetic ablation, against what is known exactly."""

import numpy as np
import pytest
import torch

from slu.errors import SettingError
from slu.krylov import Tridiagonal, high_memory, start_vector
from slu.seeds import stream
from slu_experiments import spectra
from slu_experiments.running import Place, execute
from slu_experiments.spectra import Ghosts, Spectrum, projector_distance, ritz_values
from slu_experiments.synthetic import SHOWN, LowRank, Synthetic, unit_gradients

QUICK = {"training": {"epochs": 3}, "points": 100}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("out"), progress=False)


def rows(count, length, seed=0):
    drawn = torch.randn(length, count, generator=stream(seed, "rows"), dtype=torch.float64)
    return torch.linalg.qr(drawn)[0].T


def test_ritz_values_of_a_prefix_are_those_of_a_shorter_run():
    dense = rows(30, 30)
    matrix = dense.T @ torch.diag(torch.logspace(0, -3, 30, dtype=torch.float64)) @ dense
    runs = {steps: Tridiagonal.of(high_memory(matrix, start_vector(matrix, 1), steps)) for steps in (8, 30)}
    long, short = runs[30], runs[8]
    alphas, betas = np.array(long.alphas), np.array(long.betas)
    np.testing.assert_allclose(ritz_values(alphas, betas, 8), short.eigh()[0], rtol=1e-10)
    exact = torch.linalg.eigvalsh(matrix).flip(0).numpy()
    np.testing.assert_allclose(ritz_values(alphas, betas, 30), exact, atol=1e-10)
    assert not np.allclose(ritz_values(alphas, betas, 8)[7], exact[7], rtol=0.01)  # control: 8 steps know less


def test_projector_distance_is_the_norm_of_their_difference():
    one, two = rows(6, 40, 1), rows(6, 40, 2)
    dense = torch.linalg.matrix_norm(one.T @ one - two.T @ two, 2)
    assert projector_distance(one, two, 6) == pytest.approx(float(dense))
    assert projector_distance(one, torch.randn(6, 6, generator=stream(0, "mix"), dtype=torch.float64) @ one, 6) < 1e-6


def test_a_spectrum_is_stored_and_found(place):
    result, made = execute(Spectrum("digits-mlp", steps=12, **QUICK), place)
    values = ritz_values(result.arrays["alphas"], result.arrays["betas"], 12)
    assert made and len(values) == 12 and (np.diff(values) <= 0).all() and values[0] > 10 * values[-1]
    assert not execute(Spectrum("digits-mlp", steps=12, **QUICK), place)[1]
    other, _ = execute(Spectrum("digits-mlp", steps=12, start=2, **QUICK), place)
    others = ritz_values(other.arrays["alphas"], other.arrays["betas"], 12)
    assert others[0] == pytest.approx(values[0], rel=1e-3) and others[-1] != values[-1]


def test_ghosts_are_seen(place):
    result, _ = execute(Ghosts("digits-mlp", steps=30, **QUICK), place)
    overlaps = np.abs(result.arrays["overlaps"])
    assert overlaps.shape == (30, 30) and overlaps.max() <= 1 + 1e-6
    assert (overlaps[0] > 0.9).sum() >= 2  # the first direction came back
    np.testing.assert_allclose(result.arrays["low"][:2], result.arrays["high"][0], rtol=1e-3)
    assert 0 <= result.metrics["projectors_apart"] <= 1


def test_without_rounding_there_are_no_ghosts(place, monkeypatch):
    """Control: where both runs reorthogonalize, each direction is found once."""
    monkeypatch.setattr(spectra, "low_memory", spectra.high_memory)
    _, arrays = Ghosts("digits-mlp", steps=30, **QUICK).work(Ghosts("digits-mlp", steps=30, **QUICK).config(), place)
    assert ((np.abs(arrays["overlaps"]) > 0.9).sum(1) <= 1).all()


def test_test_gradients_lie_half_inside():
    vectors = rows(5, 300).float()
    drawn = unit_gradients(vectors, 7, 0)
    torch.testing.assert_close(drawn.norm(dim=1), torch.ones(7))
    torch.testing.assert_close((drawn @ vectors.T).norm(dim=1), torch.full((7,), 0.5**0.5))


def test_the_matrix_is_what_it_says():
    vectors, values = rows(4, 50), torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    dense, v = vectors.T @ torch.diag(values) @ vectors, torch.ones(50, dtype=torch.float64)
    torch.testing.assert_close(LowRank(vectors, values) @ v, dense @ v)


def test_the_ablation_has_both_errors(place):
    job = Synthetic(parameters=4000, true_rank=20, ranks=(2, 10, 20), sizes=(50, 1000), decay=0.1)
    arrays = execute(job, place)[0].arrays
    assert set(arrays) == {*SHOWN, "rank"}
    assert (np.diff(arrays["rank"]) < 0).all()  # more steps, less error
    for name in SHOWN:
        errors = arrays[name]
        assert errors.shape == (3, 3)
        # Nothing is lost without a sketch, to rounding; more is lost through the shorter one.
        assert (errors[:, -1] < 1e-3).all() and (errors[:, 0] > errors[:, 1]).all()
    assert arrays["ratio"][-1, 0] < arrays["difference"][-1, 0]  # the paper's is off by r/s


@pytest.mark.parametrize("wrong", [{"ranks": (0,)}, {"ranks": (30,)}, {"sizes": (1,)}, {"parameters": 20}])
def test_what_cannot_be(place, wrong):
    with pytest.raises(SettingError, match="ranks must lie"):
        execute(Synthetic(**{"parameters": 1000, "true_rank": 20, "ranks": (5,), "sizes": (50,), **wrong}), place)
