"""Queries: every batch of some data scored in turn, whatever single points are like.

A point with NaN or infinity in its inputs, or whose outputs or gradients overflow, has the score infinity: it is above
every threshold. It must not harm the others of its batch, so they are scored beside a copy of one of themselves in its
place, and their scores are bit for bit those of such a batch.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from slu.budgets import Cost
from slu.budgets.memory import explain_out_of_memory
from slu.core.gathering import scores_of_all
from slu.core.positions import joined, points_of, spread
from slu.data import Batch, batch_count, check_finite
from slu.data.structure import Inputs, counts_points, map_tensors, take, tensors
from slu.errors import EmptyDataError, NotFiniteError, NotFiniteWarning
from slu.gradients import Network
from slu.processes import ALONE, Processes
from slu.progress import Bar


def score_batches(
    network: Network,
    data: Any,
    score: Callable[[Batch], Sequence[Tensor]],
    *,
    cost: Callable[[], Cost],
    progress: bool | None,
    finite: bool = False,
    near: Callable[[Sequence[Tensor]], Tensor] | None = None,
    processes: Processes = ALONE,
) -> list[Tensor]:
    """The scores of one batch, or of every batch of a loader in its order; those of all processes, if there are more.

    Args:
        network: The network, called in evaluation mode.
        data: Inputs, an (inputs, targets) pair, or a loader of them.
        score: Scores of one batch, a few tensors (b, ...); its inputs are detached.
        cost: The plan, for the message if memory runs out.
        progress: Whether to show a bar for a loader; by default in a terminal only.
        finite: Whether points that are not finite are refused, instead of scored as infinity.
        near: Which of a batch's points (b,), by their scores, are scored again alone: their last bits would decide.
        processes: Those whose scores are gathered, as `slu.core.gathering` says; one of them may have no batch.

    Returns:
        On the device of the inputs for one batch; on the CPU for a loader.

    Raises:
        NotFiniteError: Such a point is refused, or the numbers that are not finite belong to no point.

    Warns:
        NotFiniteWarning: Some points are not finite.
    """
    scores: list[Sequence[Tensor]] = []
    one, device = network.reader.is_one_batch(data), network.selection.device
    noted, alone = (_NotFinite(score, partial(_uncounted, network)) for _ in range(2))
    work = explain_out_of_memory("scoring", cost, device)
    count = batch_count(data, network.reader)
    bar = Bar("score", count, False if one or processes.rank else progress)
    empty = contextlib.nullcontext() if processes.size == 1 else contextlib.suppress(EmptyDataError)
    with work, network.evaluating(), bar, empty:
        purpose = "calibrating" if finite else "scoring"
        for batch in network.batches(data, once=True, finite=finite, purpose=purpose, learn=False):
            processes.check()
            # Inputs that require gradients would keep a graph alive with every score.
            detached = Batch(batch.index, map_tensors(Tensor.detach, batch.inputs), batch.targets)
            scored = score(detached) if finite else noted(detached)
            scores.append(scored if near is None else _settled(scored, detached, near(scored), alone))
            bar.advance()
    noted.warn()
    device = next((tensor.device for tensor in tensors(data)), torch.device("cpu")) if one else torch.device("cpu")
    own = [joined(parts) for parts in zip(*scores, strict=True)]
    every = own if processes.size == 1 else scores_of_all(processes, own, data)
    return [each.to(device) for each in every]


def _settled(
    scores: Sequence[Tensor], batch: Batch, near: Tensor, alone: Callable[[Batch], Sequence[Tensor]]
) -> Sequence[Tensor]:
    """The scores with those of some points (b,) as they are in a batch of one, in memory of its own."""
    if not bool(near.any()):
        return scores
    scores, points = [part.clone() for part in scores], len(near)

    def own(tensor: Tensor) -> Tensor:  # where a row begins in memory, and its layout, change the last bits as well
        return tensor.clone(memory_format=torch.contiguous_format)

    for place in near.nonzero()[:, 0].tolist():
        row = take((batch.inputs, batch.targets), slice(place, place + 1), points)
        for part, single in zip(scores, alone(Batch(batch.index, *map_tensors(own, row))), strict=True):
            part[place] = single[0]
    return scores


def outputs_of(network: Network, inputs: Inputs, index: int) -> Tensor:
    """(b, t) outputs of a batch, detached; rejected if not finite, or dependent on the rest of the batch."""
    with torch.no_grad():
        outputs = network.outputs(inputs)
        check_finite(outputs, f"the model's outputs on batch {index}")
        network.check_pointwise(inputs, outputs)
    return outputs


@dataclass
class _NotFinite:
    """Scores batches, and counts the points that are not finite."""

    score: Callable[[Batch], Sequence[Tensor]]
    uncounted: Callable[[Batch], Tensor]
    points: int = 0
    seen: int = 0
    first: str = field(default="", init=False)

    def __call__(self, batch: Batch) -> Sequence[Tensor]:
        bad: set[int] = set()
        given, rows, first = batch, 0, None
        while True:
            try:
                check_finite(given.inputs, f"the inputs of batch {batch.index}")
                scores = self.score(given)
                break
            except NotFiniteError as reason:
                first = first or reason
                rows = rows or _rows(batch.inputs, reason)
                more = set(reason.places or ()) - bad
                # Where a point that stands in is not finite either, it is not the point's fault.
                if not more:
                    raise
                self.first = self.first or str(reason).partition(";")[0]
                bad |= more
                given = Batch(batch.index, _standing_in(batch.inputs, sorted(bad), rows), batch.targets)
        if first is not None:
            if len(scores[0]) != rows:  # the rows of what all points share were taken for points
                raise first
            places = torch.tensor(sorted(bad), device=scores[0].device)
            unknown = self.uncounted(batch)
            scores = [_infinite(part, places, unknown) for part in scores]
        self.points += len(bad)
        self.seen += len(scores[0])
        return scores

    def warn(self) -> None:
        if self.points:
            warnings.warn(
                f"{self.points} of {self.seen} points are not finite: {self.first}. Their score is infinity, the "
                "largest there is; the other points are unharmed",
                NotFiniteWarning,
                stacklevel=2,
            )


def _infinite(scores: Tensor, places: Tensor, uncounted: Tensor) -> Tensor:
    """Scores (b, ...) with infinity for some points, and NaN at those of their positions that do not count."""
    scores, shape = scores.index_fill(0, places, torch.inf), uncounted.shape
    if scores.shape[: len(shape)] == shape and len(shape) > 1:
        scores[places] = scores[places].masked_fill(
            uncounted[places].reshape(-1, *shape[1:], *[1] * (scores.dim() - len(shape))), torch.nan
        )
    return scores


@torch.no_grad()
def _uncounted(network: Network, batch: Batch) -> Tensor:
    """(b, *positions) which positions do not count; (b,) False where inputs have none."""
    outputs = network.outputs(batch.inputs)
    points = points_of(network, batch, outputs, 0)
    return spread(torch.zeros(len(points.outputs), device=outputs.device), points, None).isnan()


def _rows(inputs: Inputs, reason: NotFiniteError) -> int:
    """How many points a batch has: as many as rows of the tensor that is not finite, or of all tensors."""
    bad = [tensor for tensor in tensors(inputs) if tensor.is_floating_point() and not bool(tensor.isfinite().all())]
    lengths = {len(tensor) if tensor.dim() else 0 for tensor in bad or tensors(inputs) if bad or tensor.dim()}
    if len(lengths) != 1 or 0 in lengths:
        raise reason  # what all points share
    return lengths.pop()


def _standing_in(inputs: Inputs, bad: Sequence[int], rows: int) -> Inputs:
    """The inputs with a copy of the first other point in place of those; zeros if there is none."""
    good = next((place for place in range(rows) if place not in set(bad)), None)

    def replaced(tensor: Tensor) -> Tensor:
        if not counts_points(tensor, rows):
            return tensor
        tensor = tensor.clone()
        if good is not None:
            tensor[bad] = tensor[good].clone()
        elif tensor.is_floating_point():
            tensor.zero_()
        return tensor

    return map_tensors(replaced, inputs)
