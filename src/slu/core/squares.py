"""Sums of squared gradients by rows and columns of every matrix, and the factored scale from them.

Letters: g (o, i) the gradient of a matrix; r_o = Σ Σ_i g_oi² and c_i = Σ Σ_o g_oi², sums over all rows of the
curvature's root: the row and column sums of its diagonal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slu.core.scaling import FactoredScaling, MatrixPlace, layout_of
from slu.curvature.root import check_finite_diagonal
from slu.gradients import FactorSize, Rows
from slu.parameters import Selection
from slu.subspace.basis import zero_curvature

_ROUNDED = 16  # units of rounding, of typical gradients, that a gradient of zero may come to
_SQUARED = 1 << 18  # numbers squared at a time


def fewer_as_factors(shape: tuple[int, int], size: FactorSize) -> bool:
    """Whether the factors of a gradient of a matrix, with more than one row, are fewer numbers than the gradient."""
    return shape[0] > 1 and size.numbers < shape[0] * shape[1]


class SquareSums:
    """r and c of every matrix, and Σ g² per entry of every other tensor, added up over chunks of rows.

    Of gradients that come as factors, g = Σ_τ b_τ a_τᵀ, r = Σ b² and c = Σ a² over positions and examples, the
    diagonals of the two Kronecker factors of the curvature. Their product has another total than Σ ‖g‖², which is
    known too and is given to it in the end. Of formed gradients r and c are the row and column sums of g².

    Cost: Σ (o + i) float64 numbers, twice; of formed gradients a square per number, of factors one per number of
    theirs, and ‖g‖².

    Numerics: every term is positive, so nothing cancels; sums over chunks are in float64. Squares below 1e-38 vanish
    in float32, far below the damping.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._layout = layout_of(selection)
        self._places = {place.start: number for number, place in enumerate(self._layout)}
        count = sum(place.numbers for place in self._layout)
        self._sums = torch.zeros(count, dtype=torch.float64, device=selection.device)
        self._of_factors = torch.zeros_like(self._sums)
        self._totals = self._sums.new_zeros(len(self._layout))

    def unformed(self, start: int, size: FactorSize) -> bool:
        """Whether gradients are asked for as factors: of matrices, where the factors are fewer numbers."""
        place = self._layout[self._places[start]]
        return fewer_as_factors((place.rows, place.columns), size)

    def add(self, rows: Rows) -> None:
        """Of a chunk, whether formed or left as factors; its pieces are read."""
        for factors in rows.factors:
            number = self._places[factors.start]
            of_rows, of_columns = self._layout[number].sides(self._of_factors)
            assert of_rows is not None  # of a matrix: `unformed` asks for no others
            if factors.of_words:
                moved = (factors.right != 0).any(3).any(1, keepdim=True)  # not those of padding
                of_rows += torch.bincount(factors.left[moved], minlength=len(of_rows))
            else:
                of_rows += factors.left.square().sum((0, 1, 2)).double()
            of_columns += factors.right.square().sum((0, 1, 2)).double()
            self._totals[number] += factors.squared_lengths().sum().double()
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
        without any gradient comes, in a typical row, to `damping` times a typical entry of D (and to `damping`² where
        the row has none either); the entries of a vector by `damping` times the median of their own positive ones. A
        tensor without any gradient has `damping` times the typical entry of the others (the median over tensors). So
        has one whose gradients are not above the rounding of others, such as a bias of keys, which a softmax does not
        see. So d follows the unit of the loss: another unit multiplies all of d by one number.

        Raises:
            NumericalError: All sums are zero, or one is not finite.
        """
        for place, total in zip(self._layout, self._totals.tolist(), strict=True):
            for side, of_factors in zip(place.sides(self._sums), place.sides(self._of_factors), strict=True):
                if side is not None and of_factors is not None and total > 0:
                    side += of_factors * (total / of_factors.sum())
        check_finite_diagonal(self._sums.to(self._selection.dtype))
        raised = [_raised(place, self._sums, damping) for place in self._layout]
        typical = [each for each in raised if each is not None]
        if not typical:
            raise zero_curvature()
        elsewhere = float(torch.tensor(typical, dtype=torch.float64).median())
        rounding = (_ROUNDED * torch.finfo(self._selection.dtype).eps) ** 2 * elsewhere
        for place, own in zip(self._layout, raised, strict=True):
            if own is None or own <= rounding:
                rows, columns = place.sides(self._sums)
                columns.fill_(damping * elsewhere if rows is None else (damping * elsewhere) ** 0.5)
                if rows is not None:
                    rows.fill_((damping * elsewhere) ** 0.5)
        return FactoredScaling(self._sums.rsqrt_().to(self._selection.dtype), self._layout)


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
