"""The points with the smallest numbers u of a pass, kept on the CPU; the numbers of those that were held out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slu.data.fingerprint import content_bytes
from slu.data.structure import Examples, Inputs, Leaf, counts_points, leaves, map_leaves
from slu.errors import EmptyDataError
from slu.processes import Processes


@dataclass(frozen=True, eq=False)
class HeldPoint:
    """One point on the CPU: its number u, and its inputs and targets as a batch of one."""

    u: float
    inputs: Inputs
    targets: Any


@dataclass(eq=False)
class Reservoir:
    """The points with the smallest numbers u: below a threshold, which falls as points come.

    Attributes:
        threshold: Points with u below this belong to it.
        max_points: At most so many are kept.
        share: The threshold falls no further than to this while that leaves at most `max_points`; infinity for a
            threshold that stays.
        min_points: And no further than leaves so many.
        others: The numbers u of points that are kept elsewhere but count here, once if they come again.
        points: What is kept.
        batch_size: Of its batches, at most: no more than came in one batch, which fitted into memory.
        seen: How many points came.
    """

    threshold: float
    max_points: int
    share: float = math.inf
    min_points: int = 0
    others: Sequence[float] = ()
    points: list[HeldPoint] = field(default_factory=list)
    batch_size: int = 1
    seen: int = 0

    def __len__(self) -> int:
        return len(self.points)

    @property
    def drawn(self) -> int:
        """How many different numbers u the points have: equal points of two shards share one, and come together."""
        return len({point.u for point in self.points})

    def admit(self, numbers: Sequence[float]) -> None:
        """Lower the threshold to what it is with points of these numbers u, which are then added, here or elsewhere."""
        mine = [u for u in (*(point.u for point in self.points), *numbers) if u < self.threshold]
        again = set(mine)
        known = [*mine, *(u for u in self.others if u not in again)]
        if self.threshold > self.share and len(known) >= self.min_points:
            # Just above the last that is wanted: the same point of two shards has one number, and stays together.
            least = math.nextafter(sorted(known)[self.min_points - 1], math.inf) if self.min_points else 0.0
            self.threshold = min(self.threshold, max(self.share, least))
        if len(known) > self.max_points:
            self.threshold = min(self.threshold, sorted(known)[self.max_points])

    def add(self, more: Sequence[HeldPoint]) -> list[HeldPoint]:
        """Take points in; returns those that are evicted for them."""
        self.admit([point.u for point in more])
        return self._evicted([*self.points, *more])

    def limit(self, most: int, numbers: Sequence[float]) -> list[HeldPoint]:
        """Keep so many of all points with these numbers u at most; returns those that are evicted here.

        There may be more points than those that are here; fewer are kept where some have one number.
        """
        known = sorted(u for u in numbers if u < self.threshold)
        if len(known) > most:
            self.threshold = known[most]
        if not known or known[0] >= self.threshold:
            self.threshold = 0.0
        return self._evicted(self.points)

    def _evicted(self, points: Sequence[HeldPoint]) -> list[HeldPoint]:
        self.points = [point for point in points if point.u < self.threshold]
        return [point for point in points if point.u >= self.threshold]

    def joined(self, other: Reservoir, *, once: bool) -> Reservoir:
        """The points of both below the lower of their thresholds.

        Args:
            other: Of another pass, which has numbered copies anew: equal points of the two have one number.
            once: Whether such points are the same one, given twice, and count once. Otherwise both had it.
        """
        threshold, max_points = min(self.threshold, other.threshold), max(self.max_points, other.max_points)
        both = Reservoir(threshold, max_points, batch_size=max(self.batch_size, other.batch_size))
        known = {point.u for point in self.points} if once else set()
        both.add([*self.points, *(point for point in other.points if point.u not in known)])
        return both

    def within(self, held_out: HeldOut) -> Reservoir:
        """Those of its points that are held out: of more points than are here the threshold may have fallen further."""
        return self.joined(Reservoir(held_out.threshold, self.max_points), once=False)

    def pooled(self, processes: Processes, *, given: bool, once: bool = False) -> Reservoir:
        """The points of all processes.

        Args:
            processes: That fit together, each with a reservoir.
            given: Whether the user gave the points, to each process a part of them or to all the same.
            once: Whether points with one number count once.

        Raises:
            EmptyDataError: No process has read a point.

        Cost: the numbers of all points are sent, and the points that are pooled, each once; where all have the same,
        none, but for those of the first process where others have them padded or batched differently.
        """
        # Numbers first: they say which points are wanted, and only these are sent.
        numbers = replace(self, points=[HeldPoint(point.u, None, None) for point in self.points])
        told = processes.gathered("numbers of calibration points", numbers)
        if not any(each.seen for each in told):
            raise EmptyDataError(f"none of the {len(told)} processes has a calibration point; give one of them some")
        if given and all(each.numbers == told[0].numbers for each in told):
            return self._of_the_first(processes)
        pooled = replace(told[0], points=[])
        for each in told:
            pooled = pooled.joined(each, once=once)
        before = {point.u for each in told[: processes.rank] for point in each.points} if once else set()
        own = [point for point in self.points if point.u < pooled.threshold and point.u not in before]
        pooled.points = [point for some in processes.gathered("calibration points", own) for point in some]
        return pooled

    def _of_the_first(self, processes: Processes) -> Reservoir:
        """What the first process has, where all have the same points; others may have them in other batches."""
        if processes.size == 1:
            return self
        content = content_bytes([self.threshold, *(leaves(pair) for pair in self.batches())])  # down to the padding
        told = processes.gathered("content of calibration points", hashlib.blake2b(content, digest_size=16).digest())
        if len(set(told)) == 1:
            return self
        return processes.gathered("calibration points", self if processes.rank == 0 else None)[0]

    @property
    def numbers(self) -> list[float]:
        """u of all points, in order."""
        return sorted(point.u for point in self.points)

    def batches(self) -> list[tuple[Inputs, Any]]:
        """All points in batches as large as their shapes allow."""
        return list(collated(self._in_order, self.batch_size))

    def alone(self, count: int) -> list[tuple[Inputs, Any]]:
        """The first so many points of these batches, each as a batch of one."""
        return list(islice(collated(self._in_order, 1), count))

    @property
    def _in_order(self) -> list[HeldPoint]:
        """Whatever the order in which they came."""
        return sorted(self.points, key=lambda point: point.u)


class HeldOut(NamedTuple):
    """Which points were not fitted, of one pass over data or of several.

    Attributes:
        threshold: No pass has fitted a point whose number u, in that pass, is below this; 0 if none was held out.
        numbers: u of the points that are held out, in order; twice where two passes held out one of that number. None
            where a pass before has fitted points of any number, so that these may be among them.
    """

    threshold: float = 0.0
    numbers: tuple[float, ...] | None = ()

    @classmethod
    def of(cls, reservoir: Reservoir) -> HeldOut:
        """The points of a reservoir."""
        return cls(reservoir.threshold, tuple(reservoir.numbers))

    def joined(self, other: HeldOut, most: int, *, once: bool) -> HeldOut:
        """As `Reservoir.joined`, at most so many."""
        if self.numbers is None or other.numbers is None:
            return HeldOut(min(self.threshold, other.threshold), None)
        one, two = (
            Reservoir(each.threshold, most, points=[HeldPoint(u, None, None) for u in each.numbers or ()])
            for each in (self, other)
        )
        return HeldOut.of(one.joined(two, once=once))


def collated(points: Sequence[HeldPoint], size: int) -> Iterator[tuple[Inputs, Any]]:
    """Points of equal shapes in batches of so many; what a batch shares must be the same in all of them."""
    groups: dict[Any, list[HeldPoint]] = {}
    for point in points:
        groups.setdefault(_signature(point), []).append(point)
    for group in groups.values():
        for start in range(0, len(group), size):
            some = group[start : start + size]
            parts = [leaves((point.inputs, point.targets)) for point in some]
            joined = iter([_joined(each) for each in zip(*parts, strict=True)])
            first = some[0]
            yield map_leaves(lambda _, joined=joined: next(joined), (first.inputs, first.targets))


def _joined(rows: Sequence[Any]) -> Leaf:
    if not counts_points(rows[0], 1):
        return rows[0]
    return torch.cat(list(rows)) if isinstance(rows[0], Tensor) else Examples(each for one in rows for each in one)


def _signature(point: HeldPoint) -> Any:
    # What has not one row belongs to a whole batch, and only points of that batch are collated.
    return tuple(
        (*((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else ()), None if counts_points(leaf, 1) else id(leaf))
        for leaf in leaves((point.inputs, point.targets))
    )
