"""Where a scale comes from: settings that a user gives, and how they are turned into numbers d.

Letters: D the curvature's diagonal, or a product of rows and columns in its place, raised so that it is nowhere zero;
d = D^(-1/2), by which gradients are multiplied (`slu.core.scaling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from slu.budgets import Cost, Size, gradients
from slu.checks import positive, whole
from slu.core.scaling import DenseScaling, FactoredScaling, Scaling
from slu.core.settings import Scale, Task
from slu.core.squares import SquareSums, fewer_as_factors
from slu.curvature import RootRows, exact_diagonal
from slu.data import batch_count, held_out_count
from slu.data.batches import Inputs
from slu.errors import NumericalError, SettingError, unknown
from slu.gradients import Unformed
from slu.parameters import Selection, described
from slu.progress import Bar

AUTO = "auto"
"""Nothing was said. Not None, which says that there shall be no scale."""

DAMPING = 1e-3
"""What D is raised by, as a share of a median, whatever the unit of the loss; small is best on every network tried."""

FIRST_POINTS = 512
"""Points that a factored scale is computed from: a few hundred are as good as all."""


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

    def __post_init__(self) -> None:
        positive("damping", self.damping)
        whole("points", self.points, least=1)

    def compute(self, task: Task) -> tuple[Scaling, None]:
        """d; no pass is needed of which the points could be counted."""
        fit = task.settings
        draws = None if fit.curvature == "empirical-fisher" else 1
        sums = SquareSums(fit.network.selection)
        with Bar("scale", None, task.progress) as bar:
            rows = _first_rows(task, self.points, draws, sums.unformed)
            rows.feed(sums.add, bar.advance)
        try:
            return sums.scaling(self.damping), None
        except NumericalError as reason:
            raise NumericalError(
                f"{reason}. The scale is of the first {rows.points} points: shuffle the data, read more of them with "
                "scale=FactoredScale(points=...), or leave the scale out with scale=None"
            ) from reason

    @property
    def factored(self) -> bool:
        """Whether it scales gradients that are left as factors."""
        return True

    @property
    def passes(self) -> int:
        """None beside that of the fit."""
        return 0

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

    def compute(self, task: Task) -> tuple[Scaling, int | None]:
        """d, and how many points were read for it, where that is all of them."""
        rows = _rows(task, task.loader) if self.points is None else _first_rows(task, self.points)
        with Bar("scale", batch_count(task.loader) if self.points is None else None, task.progress) as bar:
            diagonal = exact_diagonal(rows, task.settings.network.selection, bar.advance)
        scaling = DenseScaling.of_diagonal(diagonal, self.damping, self.prior_precision)
        return scaling, rows.points + held_out_count(task.loader.data) if self.points is None else None

    @property
    def factored(self) -> bool:
        """Whether it scales gradients that are left as factors."""
        return False

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

    @property
    def factored(self) -> bool:
        """Whether it scales gradients that are left as factors."""
        return self.scaling.factored

    def compute(self, task: Task) -> tuple[Scaling, None]:
        """d; no point is read for it."""
        del task
        return self.scaling, None

    @property
    def passes(self) -> int:
        """None."""
        return 0

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
    """What `header` gave, as SLU's constructor takes it."""
    if plain is None or plain["kind"] == "own":
        return scaling
    return SCALES[plain["kind"]](**{key: value for key, value in plain.items() if key != "kind"})


def restored_scale(scale: Scale, values: Tensor, selection: Selection) -> Scaling:
    """What the scale came to in an earlier run, from the numbers of its checkpoint."""
    if isinstance(scale, OwnScale):
        return scale.scaling
    return (FactoredScaling if isinstance(scale, FactoredScale) else DenseScaling).stored(values, selection)


def _rows(task: Task, data: Any, draws: int | None = None, left_as_factors: Unformed | None = None) -> RootRows:
    fit = task.settings
    return RootRows(
        fit.network, fit.likelihood, data, unformed=left_as_factors,
        kind=fit.curvature, seed=fit.seed, draws=draws, max_numbers=fit.gradient_memory,
    )  # fmt: skip


def _first_rows(task: Task, points: int, draws: int | None = None, left_as_factors: Unformed | None = None) -> RootRows:
    """Rows of the first points, which the fit then takes from memory."""
    network = task.settings.network

    def count(inputs: Inputs) -> int:
        with torch.no_grad():
            return len(network.outputs(inputs))

    with network.evaluating():
        return _rows(task, task.loader.first(points, network.selection.device, count), draws, left_as_factors)
