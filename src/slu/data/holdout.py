"""Points held out of a pass over the data, chosen by their content.

Every point has a number u in (0, 1) that is a function of its content, of how many equal points came before it in the
pass, and of the seed. Its content is its inputs, with the positions that its targets leave out by -100; its targets as
well where what is computed from the points depends on them. Held out are the points with u below a threshold: the share
asked for; where that would be fewer points than are wanted, whatever holds so many, and where it would be more,
whatever leaves so many. The copies of a point have the same numbers in any order, so the contents that are held out,
and how often, are the same in every pass, order and batch split. An input that comes often has copies on both sides: it
is as frequent among the held-out points as in the data. Where targets do not count, which of its copies these are, with
which targets, depends on the order. The choice is known after one pass over data of any length, because the threshold
only falls as points come: a point that was held out and then evicted goes back to the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from slu.data.batches import Batch, BegunTogether, PointCount, batches, first_of_all
from slu.data.compared import ComparedData
from slu.data.fingerprint import CopyCounter, example_keys, uniforms_at
from slu.data.masks import IGNORE_INDEX, position_mask, without_padding
from slu.data.reading import BatchReader
from slu.data.reservoir import HeldPoint, Reservoir, collated
from slu.data.shard import Shard
from slu.data.structure import (
    Examples,
    Inputs,
    Leaf,
    converted,
    counts_points,
    leaves,
    lengths,
    map_leaves,
    map_tensors,
    rows_of,
    take,
)
from slu.errors import DataError
from slu.processes import ALONE, Processes

_BATCH_SIZE = 64  # of batches that are collated from single points, at most


@dataclass(eq=False)
class HoldOut(BegunTogether):
    """Data without the points that a reservoir holds out.

    Attributes:
        loader: A loader of batches, or one batch.
        empty: The rule by which a reservoir holds points out; every pass fills a copy.
        seed: Of the choice.
        count: How many points the inputs of a batch are, where their shapes leave it open.
        least_left: Of so many points in all, how many must be left in the data; None to hold points out however few
            are left.
        processes: Those that share the data; each holds out of its own part what one would hold out of all.
        first_points: So many are read before one of them is held out or given on, by all processes together. So which
            of them are given on depends neither on the batches nor on how they are dealt out.
        reservoir: What the last whole pass held out.
        reader: How the model's batches are read.
        targets: Whether they are content of a point.

    Cost: a key per point; in memory 16 to 32 bytes per distinct point (`CopyCounter`), the first points until they are
    given on, and the points of the reservoir. Of n points in small batches, about
    max_points · log(share · n / max_points) are evicted again after they were held out. Processes send each other
    numbers u: of their first points, and at the end of those that they hold.
    """

    loader: Any
    empty: Reservoir
    seed: int
    count: Callable[[Inputs], int]
    least_left: Callable[[int], int] | None = None
    reservoir: Reservoir | None = None
    reader: BatchReader = field(default_factory=BatchReader)
    targets: bool = False
    processes: Processes = ALONE
    first_points: int = 0

    def __post_init__(self) -> None:
        self._points = PointCount(self.count)

    def __len__(self) -> int:
        return 1 if self.reader.is_one_batch(self.loader) else len(self.loader)

    def checked_batches(self, device: torch.device) -> Iterator[Batch]:
        """The batches without what is held out; last come points that were evicted."""
        first, others = self.begun(device)
        yield from first
        del first
        yield from others

    def begun(self, device: torch.device) -> tuple[list[Batch], Iterator[Batch]]:
        """A pass over the data: what is fitted of the first points, and all that comes after them."""
        reservoir, choice = replace(self.empty, points=[]), _Choice(self.seed, targets=self.targets)
        numbered = _numbered(batches(self.loader, device, once=True, reader=self.reader), self._points, choice)
        read, whole = first_of_all(numbered, self.first_points, lambda each: each.points, self.processes)
        cut = [each.cut(some) for each, _, some in read]
        own = [u for head, _ in cut for u in head.drawn.tolist()], sum(head.points for head, _ in cut)
        told = self.processes.gathered("numbers of the first points", own)
        numbers = [u for each, _ in told for u in each]
        reservoir.admit(numbers)
        if whole:
            self._settle(reservoir, sum(seen for _, seen in told), numbers)
        given = [_offered(reservoir, head)[0] for head, _ in cut]
        others = chain([tail for _, tail in cut if tail is not None], numbered)
        return [rest for rest in given if rest is not None], self._others(others, reservoir, device, own[1], whole)

    def _others(
        self, numbered: Iterable[_Numbered], reservoir: Reservoir, device: torch.device, seen: int, whole: bool
    ) -> Iterator[Batch]:
        """What comes after the first points, of which so many were seen; `whole` if these were all."""
        evicted, index = [], 0
        for each in numbered:
            index = each.batch.index
            seen += each.points
            rest, more = _offered(reservoir, each)
            if rest is not None:
                yield rest
            evicted += more
            size = reservoir.batch_size
            while len(evicted) >= size:
                yield from _batches_of(evicted[:size], index, device, size)
                del evicted[:size]
        if not whole:
            told = self.processes.gathered("held-out points", (seen, [point.u for point in reservoir.points]))
            numbers = [u for _, each in told for u in each]
            reservoir.admit([u for rank, (_, each) in enumerate(told) if rank != self.processes.rank for u in each])
            evicted += self._settle(reservoir, sum(each for each, _ in told), numbers)
        self.reservoir = reservoir
        yield from _batches_of(evicted, index, device, reservoir.batch_size)

    def _settle(self, reservoir: Reservoir, points: int, numbers: Sequence[float]) -> list[HeldPoint]:
        """All points were seen, so many, and these numbers are held out; returns what goes back to the data."""
        if self.least_left is None:
            return reservoir.add([])
        return reservoir.limit(max(0, points - self.least_left(points)), numbers)


def collected(  # noqa: PLR0913 (a pass, and which points of it)
    loader: Any,
    reservoir: Reservoir,
    seed: int,
    count: Callable[[Inputs], int],
    device: torch.device,
    reader: BatchReader | None = None,
    *,
    targets: bool = False,
    only: Sequence[float] | None = None,
) -> Reservoir:
    """The reservoir with every point of the data that belongs in it; one pass, in which nothing is differentiated.

    Args:
        loader, seed, count, reader, targets: As of `HoldOut`.
        reservoir: Which points belong in it.
        device: To which batches are brought.
        only: The numbers u of those that can belong in it; None for any.

    Raises:
        DataError: Targets count as content, and a batch has none.
    """
    choice, wanted = _Choice(seed, targets=targets), None if only is None else torch.tensor(only, dtype=torch.float64)
    for each in _numbered(batches(loader, device, once=True, reader=reader), PointCount(count), choice):
        if targets and each.batch.targets is None:
            raise DataError(
                f"batch {each.batch.index} has inputs alone, and the fit held points out by their inputs and targets, "
                "which its curvature uses; use a loader of (inputs, targets), as in the fit"
            )
        if wanted is not None:
            each = each._replace(drawn=each.drawn.masked_fill(~torch.isin(each.drawn, wanted), 1.0))
        _offered(reservoir, each)
    return reservoir


def known_points(data: Any, reader: BatchReader | None = None) -> int | None:
    """How many points there are, those held out included, where that is known without reading the data."""
    if isinstance(data, Shard):
        return data.known
    if isinstance(data, HoldOut | ComparedData):
        return known_points(data.loader, reader)
    if (reader or BatchReader()).is_one_batch(data):
        return _length(data)
    if isinstance(data, list):
        points = [_length(item) for item in data]
        return None if None in points else sum(each for each in points if each is not None)
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset) or data.batch_size is None:
        return None
    try:
        points = len(data.sampler)  # type: ignore[arg-type]
    except TypeError:
        return None
    return len(data) * data.batch_size if data.drop_last else points


def _length(item: Any) -> int | None:
    """Of the longest of a batch's leaves: those that all points share may be shorter."""
    return max(lengths(converted(item, None)), default=None)


class _Choice:
    """The numbers u of the points of one pass."""

    def __init__(self, seed: int, *, targets: bool) -> None:
        self._seed = seed
        self._targets = targets
        self._copies = CopyCounter()

    def __call__(self, batch: Batch, points: int) -> Tensor:
        # Copies are numbered in the order in which they come, so they must be equal in all that counts.
        if self._targets:
            keys = example_keys((batch.inputs, batch.targets), points)
        else:
            keys = _with_left_out(example_keys(batch.inputs, points), batch, points)
        return uniforms_at(self._copies(keys), keys, self._seed, "calibration").cpu()


def _with_left_out(keys: Tensor, batch: Batch, points: int) -> Tensor:
    """The keys, with the positions left out for points whose targets leave some out that are no padding.

    Positions without a mask may be padding where they are left out at the end, so there only those before others count.
    """
    targets = batch.targets
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.dim() < 2 or len(targets) != points:
        return keys
    left_out = targets == IGNORE_INDEX
    if not bool(left_out.any()):
        return keys
    mask = position_mask(batch.inputs)
    if mask is None or mask.shape != targets.shape[:2]:
        some_count = ~left_out.flatten(2).all(2) if targets.dim() > 2 else ~left_out
        before_some = some_count.flip(1).cumsum(1).flip(1) > 0
        left_out = left_out & before_some.view(*before_some.shape, *[1] * (targets.dim() - 2))
    own, (_, some) = example_keys((batch.inputs, left_out), points), without_padding((batch.inputs, left_out))
    return torch.where(some.flatten(1).any(1).to(keys.device), own, keys)


class _Numbered(NamedTuple):
    """A batch of so many points with their numbers u; none where nothing of it can be divided into points."""

    batch: Batch
    points: int
    drawn: Tensor

    def cut(self, place: int) -> tuple[_Numbered, _Numbered | None]:
        """The first so many points, and the others, if there are any."""
        if place >= self.points or not len(self.drawn):
            return self, None
        return self._rows(slice(0, place)), self._rows(slice(place, self.points))

    def _rows(self, some: slice) -> _Numbered:
        inputs, targets = take((self.batch.inputs, self.batch.targets), some, self.points)
        return _Numbered(Batch(self.batch.index, inputs, targets), some.stop - some.start, self.drawn[some])


def _numbered(data: Iterable[Batch], count: PointCount, choice: _Choice) -> Iterator[_Numbered]:
    for batch in data:
        points = count(batch)
        divisible = any(counts_points(leaf, points) for leaf in leaves(batch.inputs))
        yield _Numbered(batch, points, choice(batch, points) if divisible else torch.ones(0))


def _offered(reservoir: Reservoir, given: _Numbered) -> tuple[Batch | None, list[HeldPoint]]:
    """What of a batch is not held out, and which points are evicted for what is."""
    batch, points, drawn = given
    reservoir.seen += points
    if not len(drawn):
        return batch, []
    reservoir.batch_size = max(reservoir.batch_size, min(points, _BATCH_SIZE))
    reservoir.admit(drawn[drawn < reservoir.threshold].tolist())
    wanted = (drawn < reservoir.threshold).nonzero()[:, 0].tolist()
    evicted = reservoir.add([_held(batch, place, points, float(drawn[place])) for place in wanted])
    stays = drawn >= reservoir.threshold
    if bool(stays.all()):
        return batch, evicted
    if not bool(stays.any()):
        return None, evicted
    places = stays.nonzero()[:, 0]

    def rows(leaf: Leaf) -> Leaf:
        if not counts_points(leaf, points):
            return leaf
        if isinstance(leaf, Examples):
            return Examples(leaf[place] for place in places.tolist())
        return leaf[places.to(leaf.device)]

    return Batch(batch.index, *map_leaves(rows, (batch.inputs, batch.targets))), evicted


def _held(batch: Batch, place: int, points: int, u: float) -> HeldPoint:
    def row(leaf: Leaf) -> Leaf:
        if not counts_points(leaf, points):
            return leaf
        one = rows_of(leaf, slice(place, place + 1))
        return one.detach().to("cpu", copy=True) if isinstance(one, Tensor) else one  # or the whole batch would stay

    return HeldPoint(u, *map_leaves(row, (batch.inputs, batch.targets)))


def _batches_of(points: Sequence[HeldPoint], index: int, device: torch.device, size: int) -> Iterator[Batch]:
    for pair in collated(points, size):
        inputs, targets = map_tensors(lambda tensor: tensor.to(device), pair)
        yield Batch(index, inputs, targets)
