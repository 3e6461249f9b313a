"""Coordinates in which every parameter counts alike: gradients and curvature divided by √D.

Letters: D = diag(G) + α, a number per parameter; d = D^(-1/2). In scaled coordinates a gradient is
d ⊙ g and the curvature diag(d) G diag(d). Both are wrappers: what measures or multiplies does not know of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from slu.budgets import Cost, Size, gradients, piece_bytes
from slu.checks import positive, whole
from slu.core.settings import Task
from slu.curvature import RootRows, exact_diagonal
from slu.data import Batch, batch_count, batches, held_out_count
from slu.data.batches import Inputs, take, tensors
from slu.errors import SettingError, unknown
from slu.gradients import Network, Pieces, Rows, squared_lengths
from slu.krylov import Operator
from slu.parameters import described
from slu.progress import Bar
from slu.sketches import Sketch
from slu.subspace.basis import zero_curvature

AUTO = "auto"
"""Nothing was said. Not None, which says that there shall be no scale."""

DAMPING = 1e-3
"""α as a share of the diagonal's median, whatever the unit of the loss; small is best on every network tried."""


@dataclass(frozen=True)
class DiagonalScale:
    """d from the diagonal of the curvature, computed in one more pass over the data.

    Args:
        damping: α as a share of the median of the diagonal's positive entries: free of the loss's unit and of the
            number of points.
        prior_precision: α as a given number, in place of damping. The diagonal is a sum over the data,
            never a mean.
        points: How many points of the data the pass reads; None for all.

    Cost: one pass with t gradients per point; p numbers kept.
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

    def find(self, task: Task) -> tuple[Tensor, int | None]:
        """d (p,), and how many points were read for it, where that is all of them."""
        fit = task.settings
        data = task.loader if self.points is None else _First(task.loader, self.points, fit.network)
        rows = RootRows(
            fit.network, fit.likelihood, data, kind=fit.curvature, seed=fit.seed, max_numbers=fit.gradient_memory
        )
        total = batch_count(task.loader) if self.points is None else None
        with Bar("scale", total, task.progress) as bar:
            diagonal = exact_diagonal(rows, fit.network.selection, bar.advance)
        factors = factors_of(diagonal, self.damping, self.prior_precision)
        return factors, rows.points + held_out_count(task.loader) if self.points is None else None

    @property
    def passes(self) -> int:
        """Over the data, to find it."""
        return 1

    def header(self) -> dict[str, Any]:
        """As plain data, for a file."""
        return {"kind": "diagonal", **asdict(self)}

    def identity(self) -> dict[str, Any]:
        """What tells it from another scale."""
        return self.header()

    def added_to(self, cost: Cost, size: Size) -> Cost:
        """The cost of a fit with it: the diagonal and the gradients it is of, then the diagonal and a copy of it."""
        p = size.parameters * size.bytes_each
        cost = _with_factors(cost, size)
        return replace(cost, fitting=max(cost.fitting, p + gradients(size), 2 * p), passes=cost.passes + 1)


@dataclass(frozen=True, eq=False)
class OwnScale:
    """Factors d (p,) of the user's own, such as another score's `scale`."""

    factors: Tensor

    def find(self, task: Task) -> tuple[Tensor, None]:
        """d (p,); no point is read for it."""
        selection = task.settings.network.selection
        return self.factors.to(selection.device, selection.dtype), None

    @property
    def passes(self) -> int:
        """None is needed."""
        return 0

    def header(self) -> dict[str, Any]:
        """As plain data, for a file; the factors are among its tensors."""
        return {"kind": "own"}

    def identity(self) -> str:
        """Which factors these are."""
        return f"own, {described('scale', self.factors)}"

    def added_to(self, cost: Cost, size: Size) -> Cost:
        """The cost of a fit with it."""
        return _with_factors(cost, size)


def _with_factors(cost: Cost, size: Size) -> Cost:
    """p more numbers everywhere, and scaled copies of chunks of gradients."""
    p = size.parameters * size.bytes_each
    return replace(
        cost,
        artefact=cost.artefact + p,
        fitting=cost.fitting + p,
        querying=cost.querying + p + piece_bytes(replace(size, outputs=1)),
    )


def choose_scale(
    scale: str | DiagonalScale | Tensor | None, parameters: int, curvature: str
) -> DiagonalScale | OwnScale | None:
    """The scale from what the user gave: by default the diagonal's, and none for the Hessian, which has no root.

    Raises:
        SettingError: An unknown name, factors that cannot be, or a diagonal of the Hessian.
    """
    if isinstance(scale, str) and scale == AUTO:
        return None if curvature == "hessian" else DiagonalScale()
    if scale is None:
        return None
    if isinstance(scale, Tensor):
        return OwnScale(_checked(scale, parameters))
    scale = DiagonalScale() if isinstance(scale, str) and scale == "diagonal" else scale
    if not isinstance(scale, DiagonalScale):
        raise unknown("scale", scale, ["None", AUTO, "diagonal", "a DiagonalScale(...)", "a tensor of factors"])
    if curvature == "hessian":
        raise SettingError(
            "scale='diagonal' with curvature='hessian': the Hessian is no sum of squares, so its diagonal has no "
            "root; leave the scale out, take curvature='ggn', or give factors of your own"
        )
    return scale


def stored_scale(plain: Mapping[str, Any] | None, tensors: Mapping[str, Tensor]) -> DiagonalScale | Tensor | None:
    """What `header` gave, as SLU's constructor takes it."""
    if plain is None:
        return None
    if plain["kind"] == "own":
        return tensors["scale"]
    return DiagonalScale(**{key: value for key, value in plain.items() if key != "kind"})


class ScaledOperator:
    """diag(d) G diag(d) as an operator.

    Cost: that of G, and one vector of length p.
    """

    def __init__(self, operator: Operator, scale: Tensor) -> None:
        self._operator = operator
        self._scale = scale
        self.shape = operator.shape
        self.dtype = operator.dtype
        self.device = operator.device

    def __matmul__(self, vector: Tensor) -> Tensor:
        """For vectors (p,)."""
        return (self._operator @ (self._scale * vector)).mul_(self._scale)


def sketch_rows(rows: Rows, scale: Tensor | None, sketch: Sketch) -> tuple[Tensor, Tensor]:
    """‖d ⊙ g‖² (examples, vectors) and S (d ⊙ g) (examples, vectors, s) of the rows g of a chunk."""
    sketched = torch.zeros(*rows.shape, sketch.shape[0], dtype=sketch.dtype, device=sketch.device)
    squared = sketched.new_zeros(rows.shape)
    for start, values in scaled(rows.pieces, scale):
        squared += squared_lengths(values)
        sketch.accumulate(start, values, sketched)
        del values  # or it would stay in memory while the next is computed
    return squared, sketched


def scaled(pieces: Pieces, scale: Tensor | None) -> Pieces:
    """The same rows with every coordinate multiplied by its factor; unchanged without a scale."""
    for start, values in pieces:
        yield start, values if scale is None else values * scale[start : start + values.shape[-1]]
        del values  # or it would stay in memory while the next is computed


@dataclass(frozen=True)
class _First:
    """The first points of a loader, as a loader; the last batch is cut: the same points in batches of any size."""

    data: Any
    points: int
    network: Network

    def checked_batches(self, device: torch.device) -> Iterator[Batch]:
        """As `slu.data.batches` gives them."""
        left = self.points
        for batch in batches(self.data, device):
            points = self._points(batch.inputs)
            if points > left:
                first = slice(0, left)
                inputs, targets = take(batch.inputs, first, points), take(batch.targets, first, points)
                batch = Batch(batch.index, inputs, targets)
            yield batch
            left -= points
            if left <= 0:
                return

    def _points(self, inputs: Inputs) -> int:
        lengths = {len(tensor) for tensor in tensors(inputs) if tensor.dim()}
        if len(lengths) == 1:
            return lengths.pop()
        with torch.no_grad():  # something is shared by all points: the outputs are as many as these
            return len(self.network.outputs(inputs))


def factors_of(diagonal: Tensor, damping: float, prior: float | None = None) -> Tensor:
    """d (p,) from diag(G), with α = `damping` times the median of its positive entries, or a prior precision.

    Parameters that move no output of the data have a diagonal of zero, and d = α^(-1/2) is the
    largest factor there is: α must follow the scale of the diagonal, or another unit of the loss
    would be another score. A prior precision of the user's own stands beside a sum over the data.

    Raises:
        NumericalError: The diagonal is zero everywhere.

    Cost: one vector of length p beside the diagonal.
    """
    count = int(torch.count_nonzero(diagonal))  # squares: none is negative
    if not count:
        raise zero_curvature()
    if prior is not None:
        return (diagonal + prior).rsqrt_()
    # Not diagonal[diagonal > 0].median(), which would hold four more vectors.
    values = diagonal.cpu().numpy().copy()
    middle = len(values) - count + (count - 1) // 2
    values.partition(middle)
    damped = damping * float(values[middle])
    del values
    return (diagonal + damped).rsqrt_()


def _checked(scale: Tensor, parameters: int) -> Tensor:
    fine = scale.shape == (parameters,) and bool((torch.isfinite(scale) & (scale > 0)).all())
    if not fine:
        raise SettingError(
            f"a scale is one finite factor above 0 per parameter, ({parameters},); got the shape {tuple(scale.shape)}, "
            "or entries that are zero, negative or not finite"
        )
    return scale.detach()
