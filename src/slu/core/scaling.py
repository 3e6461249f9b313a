"""Coordinates in which every parameter counts alike: gradients and curvature divided by √D.

Letters: D = diag(G) + α, a number a parameter; d = D^(-1/2). In scaled coordinates a gradient is
d ⊙ g and the curvature diag(d) G diag(d). Both are wrappers: whoever measures or multiplies does
not know of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slu.budgets import Cost, Size, gradients, piece
from slu.checks import positive, whole
from slu.curvature import RootRows, exact_diagonal
from slu.data import Batch, batch_count, batches, held_out_count
from slu.data.batches import Inputs, take, tensors
from slu.errors import DamagedFileError, NumericalError, SettingError, unknown
from slu.gradients import Network, Pieces
from slu.krylov import Operator
from slu.parameters import Selection, described
from slu.progress import Bar

if TYPE_CHECKING:
    from slu.core.solvers.task import Task


USUAL_DAMPING = 1e-3
"""α as a share of the diagonal's median, whatever the unit of the loss; small is best on every network tried."""


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


def scaled(pieces: Pieces, scale: Tensor | None) -> Pieces:
    """The same rows, every coordinate multiplied by its factor; as they are where there is no scale."""
    for start, values in pieces:
        yield start, values if scale is None else values * scale[start : start + values.shape[-1]]
        del values  # or it would stay while the next is put together


@dataclass(frozen=True)
class Scaling:
    """Where the factors d come from.

    Attributes:
        kind: None for no scale, "diagonal", or "own".
        own: The user's factors.
        damping: α as a share of the diagonal's median.
        points: How many points the diagonal is taken over; None for all.
        prior: α as it is, in place of a share.

    Cost: for "diagonal" one pass with t gradients a point, p numbers kept.
    """

    kind: str | None
    own: Tensor | None
    damping: float
    points: int | None
    prior: float | None = None

    @classmethod
    def chosen(
        cls,
        scale: str | Tensor | None,
        damping: float,
        points: int | None,
        parameters: int,
        curvature: str,
        *,
        prior: float | None = None,
    ) -> Scaling:
        """From what the user gave to SLU."""
        damping = positive("damping", damping)
        if prior is not None:
            prior = positive("prior_precision", prior)
            if damping != USUAL_DAMPING:
                raise SettingError(
                    f"damping={damping:g} is a share of the diagonal's median, prior_precision={prior:g} a number of "
                    "its own; give one of the two"
                )
            if scale != "diagonal":
                raise SettingError("prior_precision is added to the diagonal of scale='diagonal'; give it with that")
        points = None if points is None else whole("scale_points", points, least=1)
        if isinstance(scale, Tensor):
            return cls("own", _checked(scale, parameters), damping, points)
        if scale not in (None, "diagonal"):
            raise unknown("scale", scale, ["None", "auto", "diagonal", "a tensor of factors"])
        if scale == "diagonal" and curvature == "hessian":
            raise SettingError(
                "scale='diagonal' with curvature='hessian': the Hessian is no sum of squares, so its diagonal has no "
                "root; leave the scale out, take curvature='ggn', or give factors of your own"
            )
        return cls(scale, None, damping, points, prior)

    def settings(self) -> dict[str, Any]:
        """As SLU's constructor takes them; factors of the user's own are kept beside."""
        return {
            "scale": self.kind,
            "damping": self.damping,
            "scale_points": self.points,
            "prior_precision": self.prior,
        }

    def identity(self) -> dict[str, Any]:
        """What a running fit belongs to: the settings, and which factors where they are the user's own."""
        return self.settings() | ({} if self.own is None else {"scale": f"own, {described('scale', self.own)}"})

    def kept(self, parameters: int) -> int:
        """Numbers that are kept for queries."""
        return 0 if self.kind is None else parameters

    @property
    def passes(self) -> int:
        """Over the data, to find it; over a part of them with `points`."""
        return 1 if self.kind == "diagonal" else 0

    def added_to(self, cost: Cost, size: Size) -> Cost:
        """The same cost with a scale: p more numbers everywhere and copies of pieces; to find it a pass, and room."""
        if self.kind is None:
            return cost
        p = size.parameters * size.bytes_each
        # The diagonal and the gradients it is of; then the diagonal and a copy of it.
        found = p + max(gradients(size), p) if self.passes else 0
        return replace(
            cost,
            artefact=cost.artefact + p,
            fitting=max(cost.fitting + p, found),
            querying=cost.querying + p + piece(size),
            passes=cost.passes + self.passes,
        )

    def factors(self, task: Task) -> tuple[Tensor | None, int | None]:
        """d (p,), or None without a scale; "diagonal" reads the data. And of how many points, where it read all."""
        selection = task.network.selection
        if self.own is not None:
            return self.own.to(selection.device, selection.dtype), None
        if self.kind is None:
            return None, None
        data = task.loader if self.points is None else _First(task.loader, self.points, task.network)
        found = RootRows(task.network, task.likelihood, data, kind=task.curvature, seed=task.seed, room=task.room)
        total = batch_count(task.loader) if self.points is None else None
        with Bar("scale", total, task.progress) as bar:
            factors = factors_of(exact_diagonal(found, selection, bar.advance), self.damping, self.prior)
        return factors, found.points + held_out_count(task.loader) if self.points is None else None

    def loaded(self, tensor: Tensor | None, selection: Selection) -> Tensor | None:
        """The factors as a file holds them, where it should hold some."""
        if self.kind is None:
            return None
        if tensor is None or tensor.shape != (selection.count,):
            raise DamagedFileError("a scale is in the header but not in the file, or of another length; fit anew")
        return tensor.to(selection.device, selection.dtype)


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
        raise NumericalError(
            "the curvature is zero in every direction: the outputs do not depend on the selected parameters, or "
            "the network is so sure of every point that nothing is left to differentiate"
        )
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
            f"a scale is one finite factor above 0 a parameter, ({parameters},); got the shape {tuple(scale.shape)}, "
            "or entries that are zero, negative or not finite"
        )
    return scale.detach()
