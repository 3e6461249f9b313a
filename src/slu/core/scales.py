"""Where a scale comes from: settings that a user gives, and how they are turned into numbers d.

Letters: D the curvature's diagonal, or a product of rows and columns in its place, raised so that it is nowhere zero;
d = D^(-1/2), by which gradients are multiplied (`slu.core.scaling`). g (o, i) the gradient of a matrix; r_o = Σ Σ_i
g_oi² and c_i = Σ Σ_o g_oi² the row and column sums of the diagonal, over all rows of the curvature's root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from slu.artifacts import stored
from slu.budgets import Cost, Size, gradients
from slu.checks import positive, whole
from slu.core.scaling import DenseScaling, FactoredScaling, MatrixPlace, Scaling, layout_of
from slu.core.settings import Task
from slu.curvature import RootRows, exact_diagonal
from slu.curvature.root import check_finite_diagonal, summed_squares
from slu.data import batch_count
from slu.errors import DamagedFileError, NumericalError, SettingError, unknown
from slu.gradients import FactorSize, Rows, Unformed
from slu.parameters import Selection, described
from slu.progress import Bar
from slu.subspace.basis import zero_curvature

AUTO = "auto"
"""Nothing was said. Not None, which says that there shall be no scale."""

DAMPING = 1e-3
"""What D is raised by, as a share of a median, whatever the unit of the loss; small is best on every network tried."""

FIRST_POINTS = 512
"""Points that a factored scale is computed from: a few hundred are as good as all."""

_ROUNDED = 16  # units of rounding, of typical gradients, that a gradient of zero may come to


@dataclass(frozen=True)
class FactoredScale:
    """d as a product of rows and columns of every matrix, from the first points of the data, which are then fitted too.

    A tensor is seen as a matrix (o, i): its first dimension and the product of the others. D_oi = r_o c_i / total: of a
    layer whose gradients have short factors, the diagonals r and c of the two Kronecker factors of its curvature; of
    others the sums over the rows and the columns of the curvature's diagonal (`SquareSums`). Vectors and matrices of
    fewer than 4,096 numbers have their diagonal itself. All is estimated from one gradient per point, of the random
    mixture that `Stream` draws.

    Args:
        points: How many points are read for it, the first that are fitted; all where there are fewer. They should be
            like the rest: shuffle data that are sorted.
        damping: What rows, columns and the entries of vectors are raised by, as a share of the median of their
            positive sums: free of the loss's unit and of the number of points.

    Cost: Σ (o + i) numbers kept; one gradient for each of these points. Until they are fitted their inputs are held in
    memory, so that the data are read once.

    Numerics: see `SquareSums`.
    """

    points: int = FIRST_POINTS
    damping: float = DAMPING
    factored = True
    passes = 0

    def __post_init__(self) -> None:
        positive("damping", self.damping)
        whole("points", self.points, least=1)

    def compute(self, task: Task) -> Scaling:
        """d; its points are read ahead, and no pass is needed."""
        fit = task.settings
        draws = None if fit.curvature == "empirical-fisher" else 1
        sums = SquareSums(fit.network.selection)
        with Bar("scale", None, task.progress) as bar:
            rows = _rows(task, self.points, draws, sums.unformed)
            rows.feed(sums.add, bar.advance)
        task.check_shards()
        task.processes.add_up(sums.tensors)
        try:
            return sums.scaling(self.damping)
        except NumericalError as reason:
            raise NumericalError(
                f"{reason}. The scale is of the first {rows.points} points: shuffle the data, read more of them with "
                "scale=FactoredScale(points=...), or leave the scale out with scale=None"
            ) from reason

    def numbers(self, size: Size) -> int:
        """That it keeps."""
        return size.sides

    def header(self) -> dict[str, Any]:
        """As plain data, for a file."""
        return {"kind": "factored", **asdict(self)}

    def identity(self) -> dict[str, Any]:
        """What tells it from another scale."""
        return self.header()

    def added_to(self, cost: Cost, size: Size) -> Cost:
        """The cost of a fit with it: the sums in float64 and the gradients they are of, then its numbers."""
        cost = _with_numbers(cost, self, size)
        shapes = size.matrices
        unformed = {number for number, factors in size.factored.items() if fewer_as_factors(shapes[number], factors)}
        size = replace(size, outputs=1).left_as_factors(unformed)
        return replace(cost, fitting=max(cost.fitting, 16 * size.sides + gradients(size)))


@dataclass(frozen=True)
class DiagonalScale:
    """d from the diagonal of the curvature, one number per parameter.

    Args:
        damping: α as a share of the median of the diagonal's positive entries: free of the loss's unit and of the
            number of points.
        prior_precision: α as a given number, in place of damping. The diagonal is a sum over the data,
            never a mean.
        points: None for all points, in one more pass over the data; or how many, the first that are fitted, which are
            then held in memory until they are.

    Cost: t gradients for each of these points; p numbers kept.
    """

    damping: float = DAMPING
    prior_precision: float | None = None
    points: int | None = None
    factored = False

    def __post_init__(self) -> None:
        damping = positive("damping", self.damping)
        if self.prior_precision is not None:
            prior = positive("prior_precision", self.prior_precision)
            if damping != DAMPING:
                raise SettingError(
                    f"damping={damping:g} is a share of the diagonal's median, prior_precision={prior:g} a number of "
                    "its own; give one of the two"
                )
        if self.points is not None:
            whole("points", self.points, least=1)

    def compute(self, task: Task) -> Scaling:
        """d, of all points in a pass of its own, or of those that are read ahead."""
        rows = _rows(task, self.points)
        with Bar("scale", batch_count(task.loader) if self.points is None else None, task.progress) as bar:
            diagonal = exact_diagonal(rows, task.settings.network.selection, bar.advance, task.processes)
        task.check_shards()
        return DenseScaling.of_diagonal(diagonal, self.damping, self.prior_precision)

    @property
    def passes(self) -> int:
        """Over the data, beside that of the fit."""
        return int(self.points is None)

    def numbers(self, size: Size) -> int:
        """That it keeps."""
        return size.parameters

    def header(self) -> dict[str, Any]:
        """As plain data, for a file."""
        return {"kind": "diagonal", **asdict(self)}

    def identity(self) -> dict[str, Any]:
        """What tells it from another scale."""
        return self.header()

    def added_to(self, cost: Cost, size: Size) -> Cost:
        """The cost of a fit with it: the diagonal and the gradients it is of, then the diagonal and a copy of it."""
        p = size.parameters * size.bytes_each
        cost = _with_numbers(cost, self, size)
        return replace(cost, fitting=max(cost.fitting, p + gradients(size), 2 * p), passes=cost.passes + self.passes)


@dataclass(frozen=True, eq=False)
class OwnScale:
    """Numbers of the user's own, such as another score's `scale`."""

    scaling: Scaling
    passes = 0

    @property
    def factored(self) -> bool:
        """Whether it scales gradients that are left as factors."""
        return self.scaling.factored

    def compute(self, task: Task) -> Scaling:
        """d; no point is read for it."""
        del task
        return self.scaling

    def numbers(self, size: Size) -> int:
        """That it keeps."""
        del size
        return len(self.scaling.values)

    def header(self) -> dict[str, Any]:
        """As plain data, for a file; the numbers are among its tensors."""
        return {"kind": "own"}

    def identity(self) -> str:
        """Which numbers these are."""
        return f"own, {self.scaling.kind}, {described('scale', self.scaling.values)}"

    def added_to(self, cost: Cost, size: Size) -> Cost:
        """The cost of a fit with it."""
        return _with_numbers(cost, self, size)


def _with_numbers(cost: Cost, scale: FactoredScale | DiagonalScale | OwnScale, size: Size) -> Cost:
    """Its numbers more everywhere."""
    held = scale.numbers(size) * size.bytes_each
    return replace(cost, artefact=cost.artefact + held, fitting=cost.fitting + held, querying=cost.querying + held)


SCALES = {"factored": FactoredScale, "diagonal": DiagonalScale}
"""Every scale that is computed from the data, by its short name; each is its own settings."""

ScaleChoice: TypeAlias = str | FactoredScale | DiagonalScale | DenseScaling | FactoredScaling | Tensor | None
"""What a user may give as a scale."""


def choose_scale(scale: ScaleChoice, curvature: str) -> FactoredScale | DiagonalScale | OwnScale | None:
    """The scale from what the user gave: by default the factored one, and none for the Hessian, which has no root.

    Raises:
        SettingError: An unknown name, or a scale from the Hessian.
    """
    if isinstance(scale, str) and scale == AUTO:
        return None if curvature == "hessian" else FactoredScale()
    if scale is None:
        return None
    if isinstance(scale, Tensor | DenseScaling | FactoredScaling):
        return OwnScale(DenseScaling(scale) if isinstance(scale, Tensor) else scale)
    scale = SCALES[scale]() if isinstance(scale, str) and scale in SCALES else scale
    if not isinstance(scale, FactoredScale | DiagonalScale):
        valid = ["None", AUTO, *SCALES, *(f"{each.__name__}(...)" for each in SCALES.values())]
        raise unknown("scale", scale, [*valid, "another score's scale", "a tensor (p,)"])
    if curvature == "hessian":
        raise SettingError(
            f"scale={scale.header()['kind']!r} with curvature='hessian': the Hessian is no sum of squares, so its "
            "diagonal has no root; leave the scale out, take curvature='ggn', or give numbers of your own"
        )
    return scale


def stored_scale(plain: Mapping[str, Any] | None, scaling: Scaling | None) -> ScaleChoice:
    """What `header` gave, as SLU's constructor takes it; DamagedFileError where it cannot have given that."""
    if (plain is None) != (scaling is None):
        raise DamagedFileError("a scale is in the settings but not in the state, or the reverse. Fit and save anew")
    if plain is None or stored.text(plain, "kind", ("own", *SCALES)) == "own":
        return scaling
    return SCALES[plain["kind"]](**{key: value for key, value in plain.items() if key != "kind"})


def _rows(
    task: Task, points: int | None, draws: int | None = None, left_as_factors: Unformed | None = None
) -> RootRows:
    """Rows of the first points, which the fit then takes from memory; None for those of all, in a pass of their own."""
    fit, data = task.settings, task.loader
    if points is not None:
        count = torch.no_grad()(lambda inputs: len(fit.network.outputs(inputs)))
        with fit.network.evaluating():
            data = task.loader.first(points, fit.network.selection.device, count)
    return RootRows(
        fit.network, fit.likelihood, data, unformed=left_as_factors,
        kind=fit.curvature, seed=fit.seed, draws=draws, max_numbers=fit.gradient_memory,
    )  # fmt: skip


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

    @property
    def tensors(self) -> list[Tensor]:
        """All that is added up."""
        return [self._sums, self._of_factors, self._totals]

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
                of_columns += factors.right.square().sum((0, 1, 2)).double()
            else:
                of_rows += factors.left.square().sum((0, 1, 2)).double()
                squares = factors.right.square()
                if squares.shape[2] > 1:  # positions without a gradient, such as padding, are no term of the sum
                    squares *= (factors.left.abs().amax(3).amax(1, keepdim=True) > 0)[..., None]
                of_columns += squares.sum((0, 1, 2)).double()
                del squares
            self._totals[number] += factors.squared_lengths().sum().double()
        for start, squares in summed_squares(rows):
            self._add_squares(start, squares.double())

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

        Rows and columns are each raised by `damping` times the median of their own sums above rounding: so a column
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
        rounding = (_ROUNDED * torch.finfo(self._selection.dtype).eps) ** 2
        raised = [_raised(place, self._sums, damping, rounding) for place in self._layout]
        typical = [each for each in raised if each is not None]
        if not typical:
            raise zero_curvature()
        elsewhere = float(torch.tensor(typical, dtype=torch.float64).median())
        for place, own in zip(self._layout, raised, strict=True):
            if own is None or own <= rounding * elsewhere:
                rows, columns = place.sides(self._sums)
                columns.fill_(damping * elsewhere if rows is None else (damping * elsewhere) ** 0.5)
                if rows is not None:
                    rows.fill_((damping * elsewhere) ** 0.5)
        return FactoredScaling(self._sums.rsqrt_().to(self._selection.dtype), self._layout)


def _raised(place: MatrixPlace, sums: Tensor, damping: float, rounding: float) -> float | None:
    """Turn the sums of a tensor into factors of its raised D, in place; a typical entry of D, or None without any.

    What is not above the rounding of the largest sum is a zero, of which some machines make one: d would raise it to 1.
    """
    rows, columns = place.sides(sums)
    sides = [columns] if rows is None else [rows, columns]
    if not all(bool((side > 0).any()) for side in sides):
        return None
    half = 1.0 if rows is None else columns.sum().sqrt()  # D = (r / √total) (c / √total)
    typical = 1.0
    for side in sides:
        side.div_(half)
        median = float(side[side > rounding * side.max()].median())
        side.add_(damping * median)
        typical *= median
    return typical
