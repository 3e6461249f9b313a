"""Coordinates in which every parameter counts alike: gradients multiplied by d, one number per parameter.

In scaled coordinates a gradient is d ⊙ g and the curvature diag(d) G diag(d). `slu.core.scales` says where d comes
from. It is kept in one of two kinds: p numbers (`DenseScaling`), or, for each tensor seen as a matrix (o, i), its o
rows and i columns, d_oi = r_o c_i (`FactoredScaling`), for which nothing of length p is ever made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from slu.budgets.costs import JOINED
from slu.errors import SettingError
from slu.gradients import Factors, Pieces, Rows, Unformed, squared_lengths
from slu.parameters import SMALL_TENSOR, Selection, matrix_shape
from slu.sketches import Sketch
from slu.subspace.basis import zero_curvature

_SMALL = 1 << 18  # numbers of pieces that wait, so that a sketch may join them
_EXPANDED = 1 << 18  # numbers r_o c_i made at a time


@dataclass(frozen=True, eq=False)
class DenseScaling:
    """d as one number per parameter.

    Attributes:
        values: d (p,).
    """

    values: Tensor
    kind: ClassVar[str] = "dense"
    factored: ClassVar[bool] = False
    """Whether gradients that are left as factors can be scaled; if not, they must be formed."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DenseScaling) and _equal(self.values, other.values)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def stored(cls, values: Tensor, selection: Selection) -> DenseScaling:
        """From the numbers of a file."""
        return cls(values).on(selection)

    @classmethod
    def of_diagonal(cls, diagonal: Tensor, damping: float, prior: float | None = None) -> DenseScaling:
        """d from diag(G) (p,), with α = `damping` times the median of its positive entries, or a prior precision.

        Parameters that move no output of the data have a diagonal of zero, and d = α^(-1/2) is the
        largest number there is: α must follow the scale of the diagonal, or another unit of the loss
        would be another score. A prior precision of the user's own stands beside a sum over the data.

        Raises:
            NumericalError: The diagonal is zero everywhere.

        Cost: one vector of length p beside the diagonal.
        """
        count = int(torch.count_nonzero(diagonal))  # squares: none is negative
        if not count:
            raise zero_curvature()
        if prior is not None:
            return cls((diagonal + prior).rsqrt_())
        # Not diagonal[diagonal > 0].median(), which would hold four more vectors.
        values = diagonal.cpu().numpy().copy()
        middle = len(values) - count + (count - 1) // 2
        values.partition(middle)
        damped = damping * float(values[middle])
        del values
        return cls((diagonal + damped).rsqrt_())

    def on(self, selection: Selection) -> DenseScaling:
        """The same on the device and in the type of the selected parameters.

        Raises:
            SettingError: It is of other parameters, or not of finite numbers above 0.
        """
        return DenseScaling(_checked(self.values, selection.count, selection))

    def scaled(self, start: int, values: Tensor, out: Tensor | None = None) -> Tensor:
        """d ⊙ values for numbers (..., m) in the coordinates from `start`, in new memory or in `out`."""
        return torch.mul(values, self.values[start : start + values.shape[-1]], out=out)

    def sides(self, start: int) -> None:
        """None: d is no product of rows and columns."""
        del start


@dataclass(frozen=True)
class MatrixPlace:
    """One tensor seen as a matrix, and where its numbers stand.

    Attributes:
        start, stop: Its coordinates in the flat vector.
        rows, columns: o and i; a vector has one row, and so has a small matrix.
        at: The place of its numbers among those of a factored scaling: of its rows and then of its columns; of a
            vector's entries.
    """

    start: int
    stop: int
    rows: int
    columns: int
    at: int

    @property
    def numbers(self) -> int:
        """Of a factored scaling."""
        return self.columns if self.rows == 1 else self.rows + self.columns

    def sides(self, values: Tensor) -> tuple[Tensor | None, Tensor]:
        """The numbers of its rows and columns among all (views); None for the rows of a vector."""
        rows = None if self.rows == 1 else values[self.at : self.at + self.rows]
        return rows, values[self.at + self.numbers - self.columns : self.at + self.numbers]

    def rectangles(self, start: int, stop: int) -> Iterator[tuple[slice, slice, slice]]:
        """The coordinates from start to stop that lie in it: rows, columns, and coordinates counted from `start`.

        A range that begins or ends within a row is a part of that row, whole rows, and a part of another.
        """
        first, last, width = max(start, self.start) - self.start, min(stop, self.stop) - self.start, self.columns
        while first < last:
            row, column = divmod(first, width)
            whole = column == 0 and last - first >= width
            end = last // width * width if whole else min(last, (row + 1) * width)
            rows = slice(row, end // width if whole else row + 1)
            here = slice(first + self.start - start, end + self.start - start)
            yield rows, slice(0, width) if whole else slice(column, column + end - first), here
            first = end


def layout_of(selection: Selection) -> tuple[MatrixPlace, ...]:
    """Every tensor as a matrix, in order; small ones as vectors, so that all their entries are kept."""
    places: list[MatrixPlace] = []
    at = 0
    for segment in selection.segments:
        rows, columns = matrix_shape(segment.shape, least=SMALL_TENSOR)
        places.append(MatrixPlace(segment.start, segment.stop, rows, columns, at))
        at += places[-1].numbers
    return tuple(places)


@dataclass(frozen=True, eq=False)
class FactoredScaling:
    """d as a product r_o c_i for every matrix, and as one number per entry for vectors and small matrices.

    Attributes:
        values: All r and c, tensor after tensor.
        layout: Where those of each tensor are.

    Cost: Σ (o + i) numbers over matrices, one per entry of the rest; scaling expands at most 2^18 products at a time.
    """

    values: Tensor
    layout: tuple[MatrixPlace, ...]
    kind: ClassVar[str] = "factored"
    factored: ClassVar[bool] = True

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FactoredScaling) or self.layout != other.layout:
            return False
        return _equal(self.values, other.values)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def stored(cls, values: Tensor, selection: Selection) -> FactoredScaling:
        """From the numbers of a file."""
        return cls(values, layout_of(selection)).on(selection)

    def on(self, selection: Selection) -> FactoredScaling:
        """As of `DenseScaling`."""
        layout = layout_of(selection)
        if layout != self.layout:
            raise SettingError(
                "the scale is of parameters with other shapes than the selected ones; give the scale of a score with "
                "the same model and params"
            )
        numbers = sum(place.numbers for place in layout)
        return FactoredScaling(_checked(self.values, numbers, selection), layout)

    def scaled(self, start: int, values: Tensor, out: Tensor | None = None) -> Tensor:
        """As of `DenseScaling`; a piece may begin and end anywhere."""
        out = torch.empty_like(values) if out is None else out
        at, stop = start, start + values.shape[-1]
        while at < stop:
            number = bisect_right(self._starts, at) - 1
            first = place = self.layout[number]
            if place.rows == 1:  # the entries of adjacent vectors are adjacent as well
                while place.stop < stop and self.layout[number + 1].rows == 1:
                    number += 1
                    place = self.layout[number]
                here = slice(at - start, min(stop, place.stop) - start)
                known = self.values[first.at + at - first.start :][: here.stop - here.start]
                torch.mul(values[..., here], known, out=out[..., here])
            else:
                self._scale_matrix(place, start, values, out)
            at = place.stop
        return out

    def _scale_matrix(self, place: MatrixPlace, start: int, values: Tensor, out: Tensor) -> None:
        rows, columns = place.sides(self.values)
        assert rows is not None
        for which, across, here in place.rectangles(start, start + values.shape[-1]):
            step = max(1, _EXPANDED // place.columns)
            width = across.stop - across.start
            for first in range(which.start, which.stop, step):
                some = rows[first : min(first + step, which.stop)]
                at = here.start + (first - which.start) * width
                part = slice(at, at + len(some) * width)
                torch.mul(values[..., part], torch.outer(some, columns[across]).flatten(), out=out[..., part])

    def sides(self, start: int) -> tuple[Tensor, Tensor] | None:
        """r (o,) and c (i,) of the matrix whose first coordinate is `start`; None if all its entries are kept."""
        rows, columns = self.layout[bisect_right(self._starts, start) - 1].sides(self.values)
        return None if rows is None else (rows, columns)

    @cached_property
    def _starts(self) -> list[int]:
        return [place.start for place in self.layout]


Scaling: TypeAlias = DenseScaling | FactoredScaling
"""d, in one of its kinds."""

SCALINGS = {each.kind: each for each in (DenseScaling, FactoredScaling)}
"""The kinds by the name that a file has."""


Note: TypeAlias = Callable[[Sequence[tuple[int, int]], bool], None]
"""Takes the first coordinate and the numbers of each of some pieces, and whether they were formed."""


def sketch_rows(
    rows: Rows, scale: Scaling | None, sketch: Sketch, note: Note = lambda *_: None
) -> tuple[Tensor, Tensor]:
    """‖d ⊙ g‖² (examples, vectors) and S (d ⊙ g) (examples, vectors, s) of the rows g of a chunk.

    Args:
        rows: Their pieces and factors are read.
        scale: d, or None.
        sketch: S.
        note: Called after work on some pieces, for `slu.core.report`.
    """
    sketched = torch.zeros(*rows.shape, sketch.shape[0], dtype=sketch.dtype, device=sketch.device)
    squared = sketched.new_zeros(rows.shape)
    waiting: list[tuple[int, Tensor]] = []

    def join() -> None:
        sketch.accumulate_pieces(waiting, sketched)
        note([(start, values.shape[-1]) for start, values in waiting], True)
        waiting.clear()

    # A piece that is shorter than a block of the sketch waits for others of it; of a sketch without blocks a few small
    # ones, which it may join.
    limit = left = max(JOINED, sketch.block) if sketch.block else _SMALL if scale is not None else 0
    for start, values in scaled(rows.pieces, scale):
        squared += squared_lengths(values)
        may_wait = not sketch.block or values.shape[-1] < sketch.block
        if waiting and sketch.block and may_wait and values.numel() > left:
            note([(start, values.shape[-1])], True)  # what it took to form it is its own
            join()
            left = limit
        if may_wait and values.numel() <= left:
            waiting.append((start, values.clone() if scale is None else values))  # the next may be formed in its place
            left -= values.numel()
        else:
            sketch.accumulate(start, values, sketched)
        note([(start, values.shape[-1])], True)
        del values  # or it would stay in memory while the next is computed
    if waiting:
        join()  # before the factors are read
    for factors in rows.factors:
        factors = factors if scale is None else scaled_factors(factors, scale)
        squared += factors.squared_lengths()
        sketch.accumulate_outer(factors.start, factors.left, factors.right, sketched)
        note([(factors.start, 1)], False)
        del factors
    return squared, sketched


def unformed(scale: Scaling | None, sketch: Sketch) -> Unformed | None:
    """Which gradients are left as factors: where the sketch is faster on these, and the scale a product like them."""
    if scale is not None and not scale.factored:
        return None
    return lambda start, size: (
        (scale is None or scale.sides(start) is not None) and sketch.prefers_factors(start, size.positions, size.words)
    )


def scaled_factors(factors: Factors, scale: Scaling) -> Factors:
    """The same gradients multiplied by d."""
    sides = scale.sides(factors.start)
    assert sides is not None  # `unformed` asks for factors of a product alone
    rows, columns = sides
    left, right = factors.left, factors.right * columns
    if factors.of_words:
        return Factors(factors.start, left, right * rows[left][..., None])
    return Factors(factors.start, left * rows, right)


def scaled(pieces: Pieces, scale: Scaling | None) -> Pieces:
    """The same rows with every coordinate multiplied by its number of d; unchanged without a scale."""
    for start, values in pieces:
        yield start, values if scale is None else scale.scaled(start, values)
        del values  # or it would stay in memory while the next is computed


def _checked(values: Tensor, count: int, selection: Selection) -> Tensor:
    if values.shape != (count,) or not bool((torch.isfinite(values) & (values > 0)).all()):
        raise SettingError(
            f"this scale of {selection.count} parameters must be {count} finite numbers above 0, ({count},); got the "
            f"shape {tuple(values.shape)}, or numbers that are zero, negative or not finite"
        )
    return values.detach().to(selection.device, selection.dtype)


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.cpu(), other.cpu())
