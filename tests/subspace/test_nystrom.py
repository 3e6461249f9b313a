"""The leading eigenvectors of a sum of squares from one pass over its rows."""

import pytest
import torch

from slu.errors import NumericalError, SettingError
from slu.subspace import Nystrom

CPU = torch.device("cpu")


def decaying(count=400, size=120, power=1.5, seed=0, dtype=torch.float64):
    """Rows whose sum of squares has eigenvalues that fall like i^-power."""
    draw = torch.Generator().manual_seed(seed)
    turned = torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=torch.float64))[0]
    scales = torch.arange(1, size + 1, dtype=torch.float64) ** (-power / 2)
    return ((torch.randn(count, size, generator=draw, dtype=torch.float64) * scales) @ turned).to(dtype)


def summed(rows, width, seed=0, pieces=(50,)):
    sums = Nystrom(rows.shape[1], width, seed, device=CPU, dtype=rows.dtype)
    start, place = 0, 0
    while start < len(rows):
        step = pieces[place % len(pieces)]
        sums.add(rows[start : start + step])
        start, place = start + step, place + 1
    return sums


def exact(rows, rank):
    values, vectors = torch.linalg.eigh(rows.double().T @ rows.double())
    return values.flip(0)[:rank], vectors.flip(1)[:, :rank]


def energy(rows, basis):
    """What the basis holds of the sum of squares, as a share of the best of its rank."""
    held = (rows.double() @ basis.double().T).square().sum()
    return float(held / exact(rows, len(basis))[0].sum())


def distance(first, second):
    """Between the projectors onto two spaces, given as rows."""
    return float(torch.linalg.matrix_norm(first.T @ first - second.T @ second, 2))


@pytest.mark.parametrize("width", [120, 500])
def test_as_wide_as_the_rows_are_long_it_is_exact(width):
    rows = decaying()
    values, basis = summed(rows, width).leading(10)
    expected, vectors = exact(rows, 10)
    assert torch.allclose(torch.from_numpy(values.copy()), expected, rtol=1e-10)
    assert distance(basis, vectors.T) < 1e-8


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-7), (torch.float32, 2e-3)])
@pytest.mark.parametrize("seed", range(4))
def test_a_sum_of_low_rank_is_found_whole(seed, dtype, error):
    rows = (decaying(seed=seed)[:, :15] @ decaying(15, seed=seed + 50)).to(dtype)
    values, basis = summed(rows, 30, seed).leading(15)
    expected, vectors = exact(rows, 15)
    assert len(basis) == 15
    # Each eigenvalue to the rounding of the largest.
    assert float((torch.from_numpy(values.copy()) - expected).abs().max()) < error * float(expected[0])
    assert float((basis.double() @ basis.double().T - torch.eye(15)).abs().max()) < 1e-5
    assert energy(rows, basis) > 1 - error
    assert distance(basis[:3].double(), vectors[:, :3].T) < 30 * error


@pytest.mark.parametrize("seed", range(6))
def test_more_vectors_than_the_rank_bring_it_close_to_the_best(seed):
    """Twice the rank holds 99 % of the best energy on a spectrum falling like i^-1.5; random directions 17 %."""
    rows = decaying(seed=seed)
    shares = [energy(rows, summed(rows, width, seed).leading(20)[1]) for width in (20, 30, 40, 80)]
    assert shares[2] > 0.985 and shares[3] > 0.999
    assert shares[0] < shares[2] < shares[3] <= 1 + 1e-9
    control = torch.linalg.qr(torch.randn(120, 20, generator=torch.Generator().manual_seed(seed)).double())[0].T
    assert energy(rows, control) < 0.5


def test_order_and_cuts_do_not_matter():
    rows = decaying()
    one = summed(rows, 40, pieces=(400,)).leading(10)
    turned = rows[torch.randperm(400, generator=torch.Generator().manual_seed(1))]
    for other in (summed(rows, 40, pieces=(1, 7, 30)), summed(turned, 40)):
        values, basis = other.leading(10)
        assert torch.allclose(torch.from_numpy(values.copy()), torch.from_numpy(one[0].copy()), rtol=1e-9)
        assert distance(basis, one[1]) < 1e-7
    control = summed(rows[:200], 40).leading(10)
    assert distance(control[1], one[1]) > 0.01


def test_eigenpairs_of_an_earlier_sum_stand_for_its_rows():
    rows = decaying(count=80, size=60)
    earlier = summed(rows[:30], 60)
    values, basis = earlier.leading(60)
    sums = Nystrom(60, 60, 0, device=CPU, dtype=torch.float64)
    sums.add_eigenpairs(values, basis)
    assert sums.count == 0
    sums.add(rows[30:])
    assert sums.trace == pytest.approx(float(rows.square().sum()))
    actual, expected = sums.leading(10), summed(rows, 60).leading(10)
    assert torch.allclose(torch.from_numpy(actual[0].copy()), torch.from_numpy(expected[0].copy()), rtol=1e-8)
    assert distance(actual[1], expected[1]) < 1e-6


def test_fewer_rows_than_the_rank_give_as_many_directions():
    values, basis = summed(decaying(count=5), 40).leading(20)
    assert len(values) == len(basis) == 5


def test_what_cannot_be_decomposed_is_refused():
    with pytest.raises(NumericalError, match="zero in every direction"):
        summed(torch.zeros(4, 20), 10).leading(3)
    with pytest.raises(NumericalError, match="NaN"):
        summed(torch.full((4, 20), torch.nan), 10).leading(3)
    with pytest.raises(SettingError, match="at least 1"):
        Nystrom(10, 0, 0, device=CPU, dtype=torch.float32)
