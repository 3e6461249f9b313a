"""The diagonal of the curvature: the exact one against dense formulas, the estimate against its own variance."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import oracles
from shorthand import curvature, relative_error, split
from slu.baselines.diagonal_laplace import NEGATIVE, hutchinson_diagonal, without_negative
from slu.curvature import RootRows, exact_diagonal, root
from slu.errors import NumericalError
from slu.gradients import Network
from slu.krylov import start_vector
from slu.likelihoods import resolve
from slu.parameters import select


def exact(model: nn.Module, data, likelihood: str = "classification", kind: str = "ggn", **more) -> Tensor:
    selection = select(model)
    source = RootRows(Network(model, selection), resolve(likelihood), data, kind=kind)
    return exact_diagonal(source, selection, **more)


@pytest.mark.parametrize("likelihood", oracles.LIKELIHOODS)
@pytest.mark.parametrize("kind", oracles.NETWORKS)
def test_exact_is_the_diagonal_of_the_dense_matrix(kind, likelihood):
    model, inputs = oracles.network(kind)
    expected = oracles.ggn(model, inputs, likelihood).diagonal()
    for sizes in ([12], [5, 7]) if kind == "encoder" else ([12], [5, 7], [1] * 12):
        actual = exact(model, split(inputs, sizes=sizes), likelihood)
        assert actual.dtype == torch.float64
        torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("likelihood", oracles.LIKELIHOODS)
def test_exact_of_the_empirical_fisher(likelihood):
    model, inputs = oracles.network("conv")
    targets = oracles.targets_for(likelihood)
    expected = oracles.outer_products(model, inputs, targets, likelihood).diagonal()
    actual = exact(model, split(inputs, targets, sizes=[5, 7]), likelihood, "empirical-fisher")
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-15)


def test_pieces_that_are_squared_in_parts(monkeypatch):
    model, inputs = oracles.network("conv")
    whole = exact(model, inputs)
    for numbers in (1, 100):
        monkeypatch.setattr(root, "_SQUARED", numbers)
        torch.testing.assert_close(exact(model, inputs), whole, rtol=1e-13, atol=0)


def test_progress_is_told_of_every_batch():
    model, inputs = oracles.network("mlp")
    told: list[int] = []
    exact(model, split(inputs, sizes=[3, 4, 5]), progress=lambda: told.append(1))
    assert len(told) == 3


def test_long_sums_in_single_precision():
    """m additions of positive terms are off by at most m ε/2 of the sum, whatever the terms."""
    points = 300
    inputs = torch.randn(points, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 3
    model = nn.Linear(3, 1)
    actual = exact(model, list(inputs.float().split(1)), "regression")
    expected = torch.cat([inputs.float().double().square().sum(0), torch.tensor([float(points)])])
    worst = points * torch.finfo(torch.float32).eps / 2
    assert actual.dtype == torch.float32
    assert float((actual / expected - 1).abs().max()) < worst
    # Control: half precision, which the parameters may have but sums never do, is far outside.
    total = torch.zeros(3, dtype=torch.bfloat16)
    for one in inputs.bfloat16():
        total += one.square()
    assert float((total / expected[:3] - 1).abs().max()) > 100 * worst


def test_half_precision_parameters_have_a_diagonal_in_single():
    model, inputs = oracles.network("mlp")
    expected = oracles.ggn(model, inputs, "classification").diagonal()
    actual = exact(model.bfloat16(), inputs.bfloat16())
    assert actual.dtype == torch.float32
    assert relative_error(actual, expected) < 0.05  # bfloat16 has 8 bits


def test_an_overflow_is_told_with_what_there_is():
    model = nn.Linear(2, 1)
    with pytest.raises(NumericalError, match=r"overflows float32.*model\.double\(\)") as raised:
        exact(model, torch.tensor([[1e20, 1.0], [1.0, 1.0]]), "regression")
    assert isinstance(raised.value.partial, Tensor) and raised.value.partial[1] == 2
    assert float(exact(model.double(), torch.tensor([[1e20, 1.0]]).double(), "regression")[0]) == pytest.approx(1e40)


SEEDS = range(60)
PROBES = 4


def standardized(matrix: Tensor, estimates: Tensor) -> tuple[float, float]:
    """The largest distance of a mean over seeds from the truth, in standard errors; and the mean squared error of
    one estimate over its variance, Σ_{j≠i} G_ij² / probes."""
    true = matrix.diagonal()
    variance = (matrix.square().sum(1) - true.square()) / PROBES
    biases = (estimates.mean(0) - true).abs() / (variance / len(SEEDS)).sqrt()
    return float(biases.max()), float(((estimates - true).square().mean(0) / variance).mean())


@pytest.mark.parametrize("likelihood", oracles.LIKELIHOODS)
def test_hutchinson_is_unbiased_with_the_variance_it_should_have(likelihood):
    """Means over 60 × 4 probes: the largest of 51 standardized biases is above 4.5 once in 3,000 times. The mean
    squared error is one of 60 draws of a few effective directions, known to about a quarter: a half is safe."""
    model, inputs = oracles.network("mlp")
    matrix = oracles.ggn(model, inputs, likelihood)
    estimates = torch.stack([hutchinson_diagonal(matrix, PROBES, seed=seed) for seed in SEEDS])
    bias, spread = standardized(matrix, estimates)
    assert bias < 4.5
    assert 0.5 < spread < 1.5
    assert bool((estimates < 0).any())
    clipped, shifted = (
        standardized(matrix, torch.stack([without_negative(each.clone(), how) for each in estimates]))
        for how in ("clip", "shift")
    )
    # Clipping can only bring an entry nearer to a truth that is not negative.
    assert clipped[1] < spread
    # Control: a diagonal that was shifted is biased, and much further from the truth.
    assert shifted[0] > 10
    assert shifted[1] > 3 * spread


def test_hutchinson_over_a_network_is_that_of_its_dense_matrix():
    model, inputs = oracles.network("conv")
    operator = curvature(model, split(inputs, sizes=[5, 7]), "multilabel")
    told: list[int] = []
    actual = hutchinson_diagonal(operator, 7, seed=2, progress=lambda: told.append(1))
    dense = hutchinson_diagonal(oracles.ggn(model, inputs, "multilabel"), 7, seed=2)
    torch.testing.assert_close(actual, dense, rtol=1e-9, atol=1e-12)
    assert operator.passes == len(told) == 7


def test_one_probe_is_exact_for_a_diagonal_matrix():
    matrix = torch.arange(1.0, 9.0).diag()
    assert torch.equal(hutchinson_diagonal(matrix, 1), matrix.diagonal())


def test_probes_are_signs_of_their_own_stream():
    ones = torch.ones(200, 200)
    first, again, other = (hutchinson_diagonal(ones, 1, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    # v ⊙ 11ᵀv is v times a whole number: the signs show, and they are not those of Lanczos' start.
    signs = first / first[0]
    assert set(signs.tolist()) == {-1.0, 1.0}
    start = start_vector(ones, 0).sign()
    assert abs(float(signs @ start)) < 5 * 200**0.5


def test_negative_entries():
    entries = torch.tensor([-2.0, 0.0, 3.0])
    assert without_negative(entries.clone(), "clip").tolist() == [0.0, 0.0, 3.0]
    assert without_negative(entries.clone(), "shift").tolist() == [0.0, 2.0, 5.0]
    for how in NEGATIVE:  # nothing to do
        assert without_negative(torch.tensor([1.0, 3.0]), how).tolist() == [1.0, 3.0]


def test_products_that_overflow_are_told():
    with pytest.raises(NumericalError, match="overflows float32"):
        hutchinson_diagonal(torch.full((3, 3), 3e38), 4)
