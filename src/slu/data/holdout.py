"""Some points kept apart from a pass over the data, chosen by their content alone.

Every point has a number u in (0, 1) that is a function of its content and the seed. Kept apart are the points
with u below a threshold: the share asked for, or, where that would be more than the most that are wanted,
whatever leaves so many. So the choice is the same in every pass, order and batch split, equal points are never
on both sides, and it is known after one pass over data of any length: a point that was kept apart and is
no longer wanted goes back among the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from slu.data.batches import Batch, Inputs, batches, counts_points, is_one_batch, map_tensors, tensors
from slu.data.keys import sample_keys, uniforms

_TOGETHER = 64  # points of a batch that is put together from single ones, at most


@dataclass(frozen=True, eq=False)
class HeldPoint:
    """One point on the CPU: its number u, and its inputs and targets as a batch of one."""

    draw: float
    inputs: Inputs
    targets: Any


@dataclass(eq=False)
class Reservoir:
    """The points with the smallest numbers u: those below a threshold, which falls so that at most `most` are left.

    Attributes:
        threshold, most: As above.
        points: Those there are.
        together: How many make a batch: no more than came in one, for which there was room.

    Cost: at most `most` points in memory.
    """

    threshold: float
    most: int
    points: list[HeldPoint] = field(default_factory=list)
    together: int = 1

    def __len__(self) -> int:
        return len(self.points)

    def add(self, more: Sequence[HeldPoint]) -> list[HeldPoint]:
        """Take points in; those that have to leave for them."""
        wanted = [point for point in [*self.points, *more] if point.draw < self.threshold]
        if len(wanted) > self.most:
            # Equal points have equal numbers and leave together.
            self.threshold = sorted(point.draw for point in wanted)[self.most]
        before, self.points = self.points, [point for point in wanted if point.draw < self.threshold]
        return [point for point in before if point.draw >= self.threshold]

    def joined(self, other: Reservoir) -> Reservoir:
        """Both pools' points below the lower of their thresholds; what is in both counts as often as in this."""
        threshold, most = min(self.threshold, other.threshold), max(self.most, other.most)
        found = Reservoir(threshold, most, together=max(self.together, other.together))
        known = {point.draw for point in self.points}
        found.add([*self.points, *(point for point in other.points if point.draw not in known)])
        return found

    def batches(self) -> list[tuple[Inputs, Any]]:
        """All points in batches as large as their shapes allow."""
        return list(_joined(self.points, self.together))


@dataclass(eq=False)
class HoldOut:
    """Data without the points that a pool keeps apart.

    Attributes:
        loader: A loader of batches, or one batch.
        share: Of the points, at most about this share is kept apart.
        most: And no more than so many.
        least: Data of fewer points, and data of which it would be more than half, are handed out whole; 0 to keep
            apart what belongs there however few are left.
        seed: Of the choice.
        count: How many points the inputs of a batch are, where their shapes leave it open.
        pool: What the last whole pass kept apart.

    Cost: a key a point; the points of the pool in memory. Of points that have to go back after they were taken
    out there are about most · log(share · n / most) in n points.
    """

    loader: Any
    share: float
    most: int
    least: int
    seed: int
    count: Callable[[Inputs], int]
    pool: Reservoir | None = None
    _plain: bool = False

    def __len__(self) -> int:
        return 1 if is_one_batch(self.loader) else len(self.loader)

    def checked_batches(self, device: torch.device) -> Iterator[Batch]:
        """The batches without what is kept apart; last come points that went back."""
        pool, back, seen, index = Reservoir(self.share, self.most), [], 0, 0
        for batch in batches(self.loader, device):
            points, index = self._points(batch), batch.index
            seen += points
            rest, left = _offered(pool, batch, points, self.seed)
            if rest is not None:
                yield rest
            back += left
            while len(back) >= pool.together:
                yield from _moved(back[: pool.together], index, device, pool.together)
                del back[: pool.together]
        # Points that are all alike have one number between them.
        if self.least and (seen < self.least or len(pool) > seen // 2):
            back += pool.points
            pool = Reservoir(0.0, self.most, together=pool.together)
        self.pool = pool
        yield from _moved(back, index, device, pool.together)

    def _points(self, batch: Batch) -> int:
        lengths = {len(tensor) for tensor in tensors((batch.inputs, batch.targets)) if tensor.dim()}
        if self._plain and len(lengths) == 1:
            return lengths.pop()
        points = self.count(batch.inputs)
        # Once the model agrees, it need not be asked again while all tensors have one length.
        self._plain = lengths == {points}
        return points


def collected(
    loader: Any, pool: Reservoir, seed: int, count: Callable[[Inputs], int], device: torch.device
) -> Reservoir:
    """The pool with every point of the data that belongs in it; one pass, in which nothing is differentiated."""
    data = HoldOut(loader, pool.threshold, pool.most, 0, seed, count)
    for batch in batches(loader, device):
        _offered(pool, batch, data._points(batch), seed)
    return pool


def held_out_count(data: Any) -> int:
    """How many points the last whole pass over the data kept apart; of what keeps none, 0."""
    return 0 if not isinstance(data, HoldOut) or data.pool is None else len(data.pool)


def known_points(data: Any) -> int | None:
    """How many points there are, where that can be told without reading the data."""
    if is_one_batch(data):
        return _length(data)
    if isinstance(data, list):
        found = [_length(item) for item in data]
        return None if None in found else sum(each for each in found if each is not None)
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset) or data.batch_size is None:
        return None
    try:
        points = len(data.sampler)  # type: ignore[arg-type]
    except TypeError:
        return None
    return len(data) * data.batch_size if data.drop_last else points


def _length(item: Any) -> int | None:
    """The longest of a batch's tensors: what is shared by the points may be shorter than they are many."""
    return max((len(tensor) for tensor in tensors(item) if tensor.dim()), default=None)


def _offered(pool: Reservoir, batch: Batch, points: int, seed: int) -> tuple[Batch | None, list[HeldPoint]]:
    """What of a batch is not kept apart, and which points go back for it."""
    if not any(counts_points(tensor, points) for tensor in tensors(batch.inputs)):
        return batch, []  # nothing here can be cut into points
    pool.together = max(pool.together, min(points, _TOGETHER))
    draws = uniforms(sample_keys(batch.inputs, points), 1, seed, "calibration")[:, 0].cpu()
    wanted = (draws < pool.threshold).nonzero()[:, 0].tolist()
    back = pool.add([_alone(batch, place, points, float(draws[place])) for place in wanted])
    stays = draws >= pool.threshold
    if bool(stays.all()):
        return batch, back
    if not bool(stays.any()):
        return None, back
    places = stays.nonzero()[:, 0]

    def rows(tensor: Tensor) -> Tensor:
        return tensor[places.to(tensor.device)] if counts_points(tensor, points) else tensor

    return Batch(batch.index, map_tensors(rows, batch.inputs), map_tensors(rows, batch.targets)), back


def _alone(batch: Batch, place: int, points: int, draw: float) -> HeldPoint:
    def row(tensor: Tensor) -> Tensor:
        if not counts_points(tensor, points):
            return tensor
        return tensor[place : place + 1].detach().to("cpu", copy=True)  # or the whole batch would stay

    return HeldPoint(draw, map_tensors(row, batch.inputs), map_tensors(row, batch.targets))


def _moved(points: Sequence[HeldPoint], index: int, device: torch.device, together: int) -> Iterator[Batch]:
    for inputs, targets in _joined(points, together):

        def here(tensor: Tensor) -> Tensor:
            return tensor.to(device)

        yield Batch(index, map_tensors(here, inputs), map_tensors(here, targets))


def _joined(points: Sequence[HeldPoint], together: int) -> Iterator[tuple[Inputs, Any]]:
    """Points of equal shapes in batches of so many; what a batch shares must be the same in all of them."""
    groups: dict[Any, list[HeldPoint]] = {}
    for point in points:
        groups.setdefault(_signature(point), []).append(point)
    for group in groups.values():
        for start in range(0, len(group), together):
            some = group[start : start + together]
            parts = [tensors((point.inputs, point.targets)) for point in some]
            joined = iter([torch.cat(each) if len(each[0]) == 1 else each[0] for each in zip(*parts, strict=True)])
            first = some[0]
            yield map_tensors(lambda _, joined=joined: next(joined), (first.inputs, first.targets))


def _signature(point: HeldPoint) -> Any:
    found = tensors((point.inputs, point.targets))
    # What has not one row belongs to a whole batch, and only its points go together.
    return tuple((tensor.shape, tensor.dtype, None if len(tensor) == 1 else id(tensor)) for tensor in found)
