"""Sums of squares by chunks: gradients formed in pieces cut anywhere, as factors, and some of both."""

import pytest
import torch
from torch import nn

from slu.core.scales import SquareSums
from slu.gradients import FactorSize, Rows
from slu.gradients.chunks import Factors
from slu.parameters import select

DAMPING = 0.01
EXAMPLES, START = 6, 4


@pytest.fixture(autouse=True)
def no_tensor_is_small(monkeypatch):
    monkeypatch.setattr("slu.core.scaling.SMALL_TENSOR", 0)


def selection(shape=(5, 3)):
    model = nn.ParameterDict({"a": torch.zeros(START).double(), "b": torch.zeros(shape).double()})
    return select(model)


def drawn(table, positions=3, o=5, i=3):
    """Factors of a matrix, and their gradients (c, 1, o i)."""
    draw = torch.Generator().manual_seed(10 * positions + o)
    left = torch.randn(EXAMPLES, 1, positions, o, generator=draw, dtype=torch.float64)
    dense = left
    if table:
        left = torch.randint(0, o, (EXAMPLES, 1, positions), generator=draw)
        dense = nn.functional.one_hot(left, o).double()
    right = torch.randn(EXAMPLES, 1, positions, i, generator=draw, dtype=torch.float64)
    return Factors(START, left, right), torch.einsum("cgto,cgti->cgoi", dense, right).flatten(2), dense


def vectors():
    return torch.randn(EXAMPLES, 1, START, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def chunk(which, pieces, factors=()):
    return Rows(which, slice(0, 1), iter(pieces), factors)


def of(factors, which):
    return Factors(factors.start, factors.left[which], factors.right[which])


def damped(side):
    return side + DAMPING * side[side > 0].median()


def expected(sides, total):
    """The values of the scaling: of the vector, of the rows, of the columns."""
    raised = [damped(side * (total / side.sum()) / total.sqrt()) for side in sides]
    return torch.cat([damped(vectors().square().sum((0, 1))), *raised]).rsqrt()


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 2)])
@pytest.mark.parametrize("step", [1, 2, 4, 7, 100])
def test_formed_gradients_in_pieces_that_are_cut_anywhere(shape, step):
    _, formed, _ = drawn(False, i=torch.Size(shape[1:]).numel())
    whole = torch.cat([vectors(), formed], -1)
    sums = SquareSums(selection(shape))
    for which in (slice(0, 1), slice(1, EXAMPLES)):
        sums.add(chunk(which, ((at, whole[which, :, at : at + step]) for at in range(0, whole.shape[-1], step))))
    matrix = formed.square().sum((0, 1)).view(5, -1)
    values = expected([matrix.sum(1), matrix.sum(0)], matrix.sum())
    torch.testing.assert_close(sums.scaling(DAMPING).values, values, rtol=1e-10, atol=0)


@pytest.mark.parametrize("positions", [1, 3, 9])
@pytest.mark.parametrize("table", [False, True])
def test_factors_in_chunks(table, positions):
    """The diagonals of the two factors, with the total of the squared lengths."""
    factors, formed, left = drawn(table, positions)
    values = expected([left.square().sum((0, 1, 2)), factors.right.square().sum((0, 1, 2))], formed.square().sum())
    for borders in ([0, EXAMPLES], [0, 1, 4, EXAMPLES]):
        sums = SquareSums(selection())
        for which in map(slice, borders[:-1], borders[1:]):
            sums.add(chunk(which, [(0, vectors()[which])], [of(factors, which)]))
        torch.testing.assert_close(sums.scaling(DAMPING).values, values, rtol=1e-10, atol=0)
    # The control: the row and column sums of the squares are others, unless there is one position and one example.
    matrix = formed.square().sum((0, 1)).view(5, -1)
    assert not torch.allclose(expected([matrix.sum(1), matrix.sum(0)], matrix.sum()), values, rtol=0.01)


@pytest.mark.parametrize("table", [False, True])
def test_some_chunks_as_factors_and_some_formed(table):
    """As where batches have texts of different lengths: both are sums with the total of their own points."""
    factors, formed, left = drawn(table)
    few, rest = slice(0, 2), slice(2, EXAMPLES)
    as_factors = formed[few].square().sum()
    matrix = formed[rest].square().sum((0, 1)).view(5, 3)
    sides = [of_factors[few].square().sum((0, 1, 2)) for of_factors in (left, factors.right)]
    rows, columns = (side * (as_factors / side.sum()) for side in sides)
    values = expected([rows + matrix.sum(1), columns + matrix.sum(0)], formed.square().sum())
    whole = torch.cat([vectors(), formed], -1)
    chunks = [(few, [(0, vectors()[few])], [of(factors, few)]), (rest, [(0, whole[rest])], ())]
    for order in (chunks, chunks[::-1]):
        sums = SquareSums(selection())
        for each in order:
            sums.add(chunk(*each))
        torch.testing.assert_close(sums.scaling(DAMPING).values, values, rtol=1e-10, atol=0)


def test_zero_rows_columns_and_chunks():
    """Sides without gradient are raised; factors that are zero add nothing, and do not divide by it."""
    factors, formed, left = drawn(False)
    left[..., 2] = 0
    factors.right[..., 1] = 0
    formed = torch.einsum("cgto,cgti->cgoi", left, factors.right).flatten(2)
    values = expected([left.square().sum((0, 1, 2)), factors.right.square().sum((0, 1, 2))], formed.square().sum())
    sums = SquareSums(selection())
    sums.add(chunk(slice(0, EXAMPLES), [(0, vectors())], [factors]))
    torch.testing.assert_close(sums.scaling(DAMPING).values, values, rtol=1e-10, atol=0)
    assert bool(torch.isfinite(values).all())
    nothing = Factors(START, torch.zeros_like(left), factors.right)
    sums = SquareSums(selection())
    sums.add(chunk(slice(0, EXAMPLES), [(0, vectors())], [nothing]))
    typical = vectors().square().sum((0, 1)).median()
    d = sums.scaling(DAMPING).scaled(START, torch.ones(15, dtype=torch.float64))
    torch.testing.assert_close(d, (DAMPING * typical).rsqrt().expand(15), rtol=1e-10, atol=0)


def test_factors_are_asked_for_where_they_are_fewer_numbers(monkeypatch):
    sums = SquareSums(selection((5, 3)))
    assert sums.unformed(START, FactorSize.of((5, 3), 1))  # 8 numbers, not 15
    assert not sums.unformed(START, FactorSize.of((5, 3), 2))  # 16
    assert not sums.unformed(0, FactorSize.of((1, 4), 1))  # of a vector
    monkeypatch.setattr("slu.core.scaling.SMALL_TENSOR", 16)
    assert not SquareSums(selection((5, 3))).unformed(START, FactorSize.of((5, 3), 1))
