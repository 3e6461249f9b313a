"""The part of the data that one of several processes reads."""

from __future__ import annotations

import heapq
import math
import warnings
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slu.data.batches import Batch, PointCount, batches
from slu.data.dealing import COPY, DISPATCHER, batch_size, dealt
from slu.data.fingerprint import example_keys
from slu.data.format import Format
from slu.data.reading import BatchReader
from slu.data.structure import Inputs, take
from slu.errors import DataError, EmptyDataError, MisuseWarning
from slu.processes import Processes

_SAMPLE = 1024  # keys by which processes compare their data
_FEWEST, _FEWEST_ALIKE = 20, 5  # points in common by which anything is said; where they are all, and none repeats
_WARNED, _REFUSED = 0.05, 0.5  # shares of the different points of one process that another has read too


class Shard:
    """The data of this process, without copies that a sampler adds; there may be none, if others have some.

    Args:
        loader: A loader of batches, an iterator of them, or one batch.
        reader: How the model's batches are read.
        count: How many points the inputs of a batch are, where their shapes leave it open.
        processes: Those that share the data.
        known: How many points all of them have, where that is known without reading them.

    Cost: a key per point; the smallest 1,024 of them are kept, and sent once or twice per fit.
    """

    def __init__(
        self, loader: Any, reader: BatchReader, count: Callable[[Inputs], int], processes: Processes, known: int | None
    ) -> None:
        if type(loader).__name__ == DISPATCHER:
            raise DataError(
                "the loader is accelerate's DataLoaderDispatcher: all processes would have to read as many batches at "
                "the same time; prepare it with DataLoaderConfiguration(dispatch_batches=False)"
            )
        self.loader = loader
        self.known = known
        self._reader = reader
        self._count = PointCount(count)
        self._processes = processes
        self._points = 0
        self._sample = KeySample()

    def __len__(self) -> int:
        return 1 if self._reader.is_one_batch(self.loader) else len(self.loader)

    def checked_batches(self, device: torch.device) -> Iterator[Batch]:
        """As `slu.data.batches` gives them; ends where another process has failed."""
        self._points, self._sample = 0, KeySample()
        own = dealt(self.loader)
        left, size = (math.inf, 0) if own is None else (int((own != COPY).sum()), batch_size(self.loader) or 0)
        first = 0 if own is None else min(size, len(own))
        try:
            for batch in batches(self.loader, device, once=True, reader=self._reader):
                self._processes.check()
                points = self._count(batch)
                if points != first and batch.index == 0:  # what joins examples makes other points
                    left = math.inf
                if points > left:  # copies that make the parts of all processes equal
                    points, whole = int(left), points
                    batch = Batch(batch.index, *take((batch.inputs, batch.targets), slice(0, points), whole))
                left -= points
                if not points:
                    continue
                self._points += points
                self._sample.add(example_keys((batch.inputs, batch.targets), points))
                yield batch
        except EmptyDataError:
            pass  # `check` refuses data that are empty everywhere

    def check(self) -> None:
        """Compare what all processes have read so far in this pass, and share the format of their batches.

        Raises:
            EmptyDataError: None has read a point.
            DataError: Two have read the same points, half of them or more, and no sampler dealt out others.

        Warns:
            MisuseWarning: Two have read some of the same.
        """
        own = dealt(self.loader)
        begins = None if own is None or not len(own) else int(own[0])
        told = self._processes.gathered("samples of keys", (self._points, self._sample, begins, self._reader.format))
        if not any(points for points, *_ in told):
            raise EmptyDataError(f"the loaders of all {len(told)} processes gave no batch; at least one is needed")
        self._reader.format = reduce(Format.joined, (each for *_, each in told))
        for (one, (_, first, at, _)), (other, (_, second, to, _)) in combinations(enumerate(told), 2):
            shared = first.shared_with(second)
            text = (
                f"processes {one} and {other} read the same points: about {shared:.0%} of those of one are in the data "
                f"of the other, by their content. Give each of the {len(told)} processes a part of its own: "
                "DataLoader(data, sampler=DistributedSampler(data, shuffle=False)), or accelerate's prepare(loader)"
            )
            # Samplers that dealt out different places: the data may hold every point twice.
            apart = at is not None and to is not None and at != to
            if shared > _REFUSED and not apart:
                raise DataError(text)
            if shared > _WARNED and self._processes.rank == 0:
                warnings.warn(text, MisuseWarning, stacklevel=2)


class KeySample:
    """The smallest keys of some points, by which the share of points that two sets have in common is estimated.

    Numerics: of m keys below the smaller of the two largest that are kept, the share has a standard error of at most
    1 / (2 √m). Of data in which points repeat, equal ones on two processes say nothing, so the share counts only what
    is in excess of the repetitions within one.
    """

    def __init__(self) -> None:
        self.keys: dict[int, int] = {}
        """How often each of the smallest keys came."""
        self._largest: list[int] = []

    def add(self, keys: Tensor) -> None:
        """Those of a batch."""
        distinct, counts = np.unique(keys.cpu().numpy().view(np.uint64), return_counts=True)
        for key, count in zip(distinct[:_SAMPLE].tolist(), counts[:_SAMPLE].tolist(), strict=True):
            if key in self.keys:
                self.keys[key] += count
            elif len(self.keys) < _SAMPLE:
                self.keys[key] = count
                heapq.heappush(self._largest, -key)
            elif key < -self._largest[0]:
                del self.keys[-heapq.heapreplace(self._largest, -key)]
                self.keys[key] = count

    def shared_with(self, other: KeySample) -> float:
        """The share of different points of the smaller set that the other has too; 0 where points repeat anyway."""
        below = min(self._bound, other._bound)
        mine, theirs = ({key for key in each.keys if key <= below} for each in (self, other))
        repeated = max((sum(each.keys.values()) - len(each.keys)) / max(1, len(each.keys)) for each in (self, other))
        common, alike = len(mine & theirs), self.keys == other.keys
        if common < (_FEWEST_ALIKE if alike and not repeated else _FEWEST):
            return 0.0
        both = common / min(len(mine), len(theirs))
        return both if repeated < both / 4 or alike else 0.0  # of every point twice, dealt at random, it is a half

    @property
    def _bound(self) -> int:
        """All keys up to this are known."""
        return -self._largest[0] if len(self.keys) == _SAMPLE else 1 << 64
