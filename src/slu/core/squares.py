"""Sums of squared gradients over the rows and the columns of every tensor seen as a matrix, and the scale from them.

Letters: g (o, i) the gradient of a matrix in one row of the curvature's root; r_o = Σ Σ_i g_oi², c_i = Σ Σ_o g_oi²,
sums over all rows of the root, so that r and c are the row and column sums of diag(G) and have the same total.
D_oi = r_o c_i / total replaces diag(G) in that matrix: it has its row sums and its column sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slu.core.scaling import FactoredScaling, MatrixPlace, layout_of
from slu.curvature.root import check_finite_diagonal
from slu.gradients import Rows
from slu.gradients.chunks import PIECE_NUMBERS, Factors, examples_within
from slu.parameters import Selection
from slu.subspace.basis import zero_curvature

_SQUARED = 1 << 18  # numbers squared at a time


class SquareSums:
    """r and c of every matrix, and Σ g² per entry of every vector, added up over chunks of rows.

    Cost: Σ (o + i) float64 numbers; of formed gradients a square per number, of factors see `row_and_column_squares`.

    Numerics: every term is positive, so nothing cancels; sums over chunks are in float64. Squares below 1e-38 vanish
    in float32, far below the damping.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._layout = layout_of(selection)
        count = sum(place.numbers for place in self._layout)
        self._sums = torch.zeros(count, dtype=torch.float64, device=selection.device)

    def add(self, rows: Rows) -> None:
        """Of a chunk, whether formed or left as factors; its pieces are read."""
        for factors in rows.factors:
            place = next(place for place in self._layout if place.start == factors.start)
            of_rows, of_columns = row_and_column_squares(factors, place.columns if place.upright else place.rows)
            rows_sum, columns_sum = place.sides(self._sums)
            if rows_sum is not None:
                rows_sum += of_rows
            columns_sum += of_rows if place.upright else of_columns
        count = rows.shape[0] * rows.shape[1]
        for start, values in rows.pieces:
            width = max(1, _SQUARED // count)
            for first in range(0, values.shape[-1], width):
                squares = values[..., first : first + width].square().sum((0, 1))
                self._add_squares(start + first, squares.double())
            del values  # or it would be held while the next is formed

    def _add_squares(self, start: int, squares: Tensor) -> None:
        """Σ g² (m,) of the coordinates from `start`, which may begin and end within rows."""
        stop = start + len(squares)
        for place in self._layout:
            if place.stop <= start or place.start >= stop:
                continue
            rows_sum, columns_sum = place.sides(self._sums)
            for which, across, here in place.rectangles(start, stop):
                matrix = squares[here].view(which.stop - which.start, -1)
                columns_sum[across] += matrix.sum(0)
                if rows_sum is not None:
                    rows_sum[which] += matrix.sum(1)

    def scaling(self, damping: float) -> FactoredScaling:
        """d = D^(-1/2), with D raised where no data move a parameter; uses the sums up.

        Rows and columns are each raised by `damping` times the median of their own positive sums, so that a column
        without any gradient comes, in a typical row, to `damping` times a typical entry of D; the entries of a vector
        by `damping` times the median of their own positive ones. A tensor without any gradient has `damping` times
        the typical entry of the others (the median over tensors). So d follows the unit of the loss: another unit
        multiplies all of d by one number.

        Raises:
            NumericalError: All sums are zero, or one is not finite.
        """
        check_finite_diagonal(self._sums.to(self._selection.dtype))
        raised = [_raised(place, self._sums, damping) for place in self._layout]
        typical = [each for each in raised if each is not None]
        if not typical:
            raise zero_curvature()
        elsewhere = float(torch.tensor(typical, dtype=torch.float64).median())
        for place, own in zip(self._layout, raised, strict=True):
            if own is None:
                rows, columns = place.sides(self._sums)
                columns.fill_(damping * elsewhere if rows is None else (damping * elsewhere) ** 0.5)
                if rows is not None:
                    rows.fill_((damping * elsewhere) ** 0.5)
        return FactoredScaling(self._sums.rsqrt_().to(self._selection.dtype), self._layout)


def row_and_column_squares(factors: Factors, rows: int) -> tuple[Tensor, Tensor]:
    """Σ_i g_oi² (o,) and Σ_o g_oi² (i,) of gradients left as factors, g = Bᵀ A, summed over examples and vectors.

    With the inner products A Aᵀ and B Bᵀ of positions, these are the diagonals of Bᵀ (A Aᵀ) B and Aᵀ (B Bᵀ) A: exact,
    and g is not formed. For rows of a table, B Bᵀ says which positions are of the same row.

    Args:
        factors: B (T, o) and A (T, i) of every example and vector.
        rows: o.

    Cost: T² (o + i) products per gradient; T² numbers of some examples at a time.
    """
    left, right = factors.left, factors.right
    table = not left.is_floating_point()
    count = max(right.shape[1], 1 if table else left.shape[1])
    of_rows = torch.zeros(rows, dtype=torch.float64, device=right.device)
    of_columns = torch.zeros(right.shape[-1], dtype=torch.float64, device=right.device)
    step = examples_within(PIECE_NUMBERS, count * right.shape[2] ** 2)
    for b, a in zip(left.split(step), right.split(step), strict=True):
        of_positions = a @ a.mT  # (c, g or 1, T, T)
        if table:
            same = (b[..., None] == b[..., None, :]).to(a.dtype)
            each = (of_positions * same).sum((1, 3)).double()  # (c, T)
            of_rows.index_add_(0, b[:, 0].flatten(), each.flatten())
        else:
            same = b @ b.mT
            of_rows += ((of_positions @ b) * b).sum((0, 1, 2)).double()
        of_columns += ((same @ a) * a).sum((0, 1, 2)).double()
    return of_rows.clamp_(min=0), of_columns.clamp_(min=0)  # rounding may leave less than nothing where all cancels


def _raised(place: MatrixPlace, sums: Tensor, damping: float) -> float | None:
    """Turn the sums of a tensor into factors of its raised D, in place; a typical entry of D, or None without any."""
    rows, columns = place.sides(sums)
    sides = [columns] if rows is None else [rows, columns]
    if not all(bool((side > 0).any()) for side in sides):
        return None
    half = 1.0 if rows is None else columns.sum().sqrt()  # D = (r / √total) (c / √total)
    typical = 1.0
    for side in sides:
        median = float(side.div_(half)[side > 0].median())
        side.add_(damping * median)
        typical *= median
    return typical
