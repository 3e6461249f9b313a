"""Data of which the first points are needed before the pass over all of them, without reading them twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from slu.data.batches import Batch, Inputs, batches, is_one_batch, take, tensors


@dataclass(eq=False)
class ReadAhead:
    """The batches of some data; those that were read ahead are kept, and the next pass begins with them.

    So `first` and one pass read the data once, and may be given an iterator. A second pass reads them anew.

    Attributes:
        data: A loader of batches, an iterator of them, or one batch.

    Cost: the batches that hold the first points, in memory until the pass takes them.
    """

    data: Any
    _buffer: deque[Batch] = field(default_factory=deque)
    _rest: Iterator[Batch] | None = None

    def __len__(self) -> int:
        return 1 if is_one_batch(self.data) else len(self.data)

    def first(self, points: int, device: torch.device, count: Callable[[Inputs], int]) -> list[tuple[Inputs, Any]]:
        """The first so many points, or all where there are fewer, as batches; the last is cut.

        Args:
            points: How many.
            device: Where they are put.
            count: Tells how many points the inputs of a batch are, where their shapes leave it open.
        """
        assert self._rest is None  # one pass continues what was read ahead, not two
        self._rest = batches(self.data, device, once=True)
        taken: list[tuple[Inputs, Any]] = []
        for batch in self._rest:
            self._buffer.append(batch)
            lengths = {len(tensor) for tensor in tensors(batch.inputs) if tensor.dim()}
            here = lengths.pop() if len(lengths) == 1 else count(batch.inputs)
            some = slice(0, min(points, here))
            taken.append((take(batch.inputs, some, here), take(batch.targets, some, here)))
            points -= here
            if points <= 0:
                break
        return taken

    def checked_batches(self, device: torch.device) -> Iterator[Batch]:
        """As `slu.data.batches` gives them."""
        rest = self._rest or batches(self.data, device, once=True)
        self._rest = None
        while self._buffer:
            yield self._buffer.popleft()
        yield from rest
