"""Points held out of a pass over the data, chosen by their content alone.

Every point has a number u in (0, 1) that is a function of its content and the seed. Held out are the points
with u below a threshold: the share asked for, or, where that would be more than the most that are wanted,
whatever leaves so many. So the choice is the same in every pass, order and batch split, equal points are never
on both sides, and it is known after one pass over data of any length: a point that was held out and then
evicted from the reservoir goes back to the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from slu.data.batches import Batch, Inputs, batches, counts_points, is_one_batch, map_tensors, tensors
from slu.data.fingerprint import example_keys, uniforms

_BATCH_SIZE = 64  # of batches that are collated from single points, at most


@dataclass(frozen=True, eq=False)
class HeldPoint:
    """One point on the CPU: its number u, and its inputs and targets as a batch of one."""

    u: float
    inputs: Inputs
    targets: Any


@dataclass(eq=False)
class Reservoir:
    """The points with the smallest numbers u: below a threshold, which falls so that at most `max_points` are left.

    Their batches have at most `batch_size` points: no more than came in one batch, which fitted into memory.
    """

    threshold: float
    max_points: int
    points: list[HeldPoint] = field(default_factory=list)
    batch_size: int = 1

    def __len__(self) -> int:
        return len(self.points)

    def add(self, more: Sequence[HeldPoint]) -> list[HeldPoint]:
        """Take points in; returns those that are evicted for them."""
        wanted = [point for point in [*self.points, *more] if point.u < self.threshold]
        if len(wanted) > self.max_points:
            # Equal points have equal numbers and are evicted at the same time.
            self.threshold = sorted(point.u for point in wanted)[self.max_points]
        before, self.points = self.points, [point for point in wanted if point.u < self.threshold]
        return [point for point in before if point.u >= self.threshold]

    def joined(self, other: Reservoir) -> Reservoir:
        """The points of both below the lower of their thresholds; of points in both, those of this one."""
        threshold, max_points = min(self.threshold, other.threshold), max(self.max_points, other.max_points)
        both = Reservoir(threshold, max_points, batch_size=max(self.batch_size, other.batch_size))
        known = {point.u for point in self.points}
        both.add([*self.points, *(point for point in other.points if point.u not in known)])
        return both

    def batches(self) -> list[tuple[Inputs, Any]]:
        """All points in batches as large as their shapes allow."""
        return list(_collated(self.points, self.batch_size))


@dataclass(eq=False)
class HoldOut:
    """Data without the points that a reservoir holds out.

    Attributes:
        loader: A loader of batches, or one batch.
        share: Of the points, at most about this share is held out.
        max_points: And no more than so many.
        min_points: Of data of fewer points, and of data of which it would be more than half, nothing is held out; 0
            to hold points out however few are left.
        seed: Of the choice.
        count: How many points the inputs of a batch are, where their shapes leave it open.
        reservoir: What the last whole pass held out.

    Cost: a key per point; the points of the reservoir in memory. Of n points, about
    max_points · log(share · n / max_points) are evicted again after they were held out.
    """

    loader: Any
    share: float
    max_points: int
    min_points: int
    seed: int
    count: Callable[[Inputs], int]
    reservoir: Reservoir | None = None
    _one_length: bool = False

    def __len__(self) -> int:
        return 1 if is_one_batch(self.loader) else len(self.loader)

    def checked_batches(self, device: torch.device) -> Iterator[Batch]:
        """The batches without what is held out; last come points that were evicted."""
        reservoir, evicted, seen, index = Reservoir(self.share, self.max_points), [], 0, 0
        for batch in batches(self.loader, device, once=True):
            points, index = self._points(batch), batch.index
            seen += points
            rest, more = _offered(reservoir, batch, points, self.seed)
            if rest is not None:
                yield rest
            evicted += more
            size = reservoir.batch_size
            while len(evicted) >= size:
                yield from _batches_of(evicted[:size], index, device, size)
                del evicted[:size]
        # Equal points have equal numbers, so they may all be held out.
        if self.min_points and (seen < self.min_points or len(reservoir) > seen // 2):
            evicted += reservoir.points
            reservoir = Reservoir(0.0, self.max_points, batch_size=reservoir.batch_size)
        self.reservoir = reservoir
        yield from _batches_of(evicted, index, device, reservoir.batch_size)

    def _points(self, batch: Batch) -> int:
        lengths = {len(tensor) for tensor in tensors((batch.inputs, batch.targets)) if tensor.dim()}
        if self._one_length and len(lengths) == 1:
            return lengths.pop()
        points = self.count(batch.inputs)
        # Once the model has confirmed it, it is not called again while all tensors have one length.
        self._one_length = lengths == {points}
        return points


def collected(
    loader: Any, reservoir: Reservoir, seed: int, count: Callable[[Inputs], int], device: torch.device
) -> Reservoir:
    """The reservoir with every point of the data that belongs in it; one pass, in which nothing is differentiated."""
    data = HoldOut(loader, reservoir.threshold, reservoir.max_points, 0, seed, count)
    for batch in batches(loader, device, once=True):
        _offered(reservoir, batch, data._points(batch), seed)
    return reservoir


def held_out_count(data: Any) -> int:
    """How many points the last whole pass over the data held out; 0 of data without a hold-out."""
    return 0 if not isinstance(data, HoldOut) or data.reservoir is None else len(data.reservoir)


def known_points(data: Any) -> int | None:
    """How many points there are, where that is known without reading the data."""
    if is_one_batch(data):
        return _length(data)
    if isinstance(data, list):
        lengths = [_length(item) for item in data]
        return None if None in lengths else sum(each for each in lengths if each is not None)
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset) or data.batch_size is None:
        return None
    try:
        points = len(data.sampler)  # type: ignore[arg-type]
    except TypeError:
        return None
    return len(data) * data.batch_size if data.drop_last else points


def _length(item: Any) -> int | None:
    """Of the longest of a batch's tensors: those that all points share may be shorter."""
    return max((len(tensor) for tensor in tensors(item) if tensor.dim()), default=None)


def _offered(reservoir: Reservoir, batch: Batch, points: int, seed: int) -> tuple[Batch | None, list[HeldPoint]]:
    """What of a batch is not held out, and which points are evicted for what is."""
    if not any(counts_points(tensor, points) for tensor in tensors(batch.inputs)):
        return batch, []  # nothing here can be divided into points
    reservoir.batch_size = max(reservoir.batch_size, min(points, _BATCH_SIZE))
    drawn = uniforms(example_keys(batch.inputs, points), 1, seed, "calibration")[:, 0].cpu()
    wanted = (drawn < reservoir.threshold).nonzero()[:, 0].tolist()
    evicted = reservoir.add([_held(batch, place, points, float(drawn[place])) for place in wanted])
    stays = drawn >= reservoir.threshold
    if bool(stays.all()):
        return batch, evicted
    if not bool(stays.any()):
        return None, evicted
    places = stays.nonzero()[:, 0]

    def rows(tensor: Tensor) -> Tensor:
        return tensor[places.to(tensor.device)] if counts_points(tensor, points) else tensor

    return Batch(batch.index, *map_tensors(rows, (batch.inputs, batch.targets))), evicted


def _held(batch: Batch, place: int, points: int, u: float) -> HeldPoint:
    def row(tensor: Tensor) -> Tensor:
        if not counts_points(tensor, points):
            return tensor
        return tensor[place : place + 1].detach().to("cpu", copy=True)  # or the whole batch would stay

    return HeldPoint(u, *map_tensors(row, (batch.inputs, batch.targets)))


def _batches_of(points: Sequence[HeldPoint], index: int, device: torch.device, size: int) -> Iterator[Batch]:
    for pair in _collated(points, size):
        inputs, targets = map_tensors(lambda tensor: tensor.to(device), pair)
        yield Batch(index, inputs, targets)


def _collated(points: Sequence[HeldPoint], size: int) -> Iterator[tuple[Inputs, Any]]:
    """Points of equal shapes in batches of so many; what a batch shares must be the same in all of them."""
    groups: dict[Any, list[HeldPoint]] = {}
    for point in points:
        groups.setdefault(_signature(point), []).append(point)
    for group in groups.values():
        for start in range(0, len(group), size):
            some = group[start : start + size]
            parts = [tensors((point.inputs, point.targets)) for point in some]
            joined = iter([torch.cat(each) if len(each[0]) == 1 else each[0] for each in zip(*parts, strict=True)])
            first = some[0]
            yield map_tensors(lambda _, joined=joined: next(joined), (first.inputs, first.targets))


def _signature(point: HeldPoint) -> Any:
    # What has not one row belongs to a whole batch, and only points of that batch are collated.
    return tuple(
        (tensor.shape, tensor.dtype, None if len(tensor) == 1 else id(tensor))
        for tensor in tensors((point.inputs, point.targets))
    )
