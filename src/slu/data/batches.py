"""From whatever a user passes as data to checked batches on the model's device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from slu.data.reading import BatchReader
from slu.data.structure import Inputs, lengths, map_tensors, take, tensors
from slu.errors import DataError, EmptyDataError, NotFiniteError, out_of_memory
from slu.processes import ALONE, Processes

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Batch:
    """One batch: `index` counts from 0 in the loader's order, `targets` is None where there are none."""

    index: int
    inputs: Inputs
    targets: Any


@runtime_checkable
class BatchSource(Protocol):
    """Data that are a part of other data, and give their checked batches themselves."""

    def checked_batches(self, device: torch.device) -> Iterator[Batch]:
        """As `batches` gives them."""
        ...


class BegunTogether(ABC):
    """Data of which the first points are all read before one of them is given on."""

    @abstractmethod
    def begun(self, device: torch.device) -> tuple[list[Batch], Iterator[Batch]]:
        """What is given on of the first points, and of all that come after them."""


def batch_count(data: Any, reader: BatchReader | None = None) -> int | None:
    """How many batches there are; None where a loader does not know, as over an iterable data set."""
    if (reader or BatchReader()).is_one_batch(data):
        return 1
    try:
        return len(data)
    except TypeError:
        return None


def check_repeatable(data: Any, needs: str) -> None:
    """Refuse an iterator where several passes are needed.

    Raises:
        DataError: The data can be read only once.
    """
    if isinstance(data, Iterator):
        raise DataError(
            f"the data are a {type(data).__name__}, which can be read only once; {needs}. Pass a DataLoader or a list "
            "of batches"
        )


def batches(
    data: Any,
    device: torch.device | None,
    *,
    once: bool = False,
    finite: bool = True,
    reader: BatchReader | None = None,
    learn: bool = True,
) -> Iterator[Batch]:
    """Every batch of the data once, on the device, checked for points, NaN and infinity.

    Args:
        data: A loader (anything that can be iterated again and again) of `(inputs, targets)`
            or of inputs alone; or one batch, as `BatchReader.is_one_batch` says.
        device: Where the batches are put; None for where they are.
        once: Whether the data are read this once only, so that an iterator will do.
        finite: Whether NaN and infinity are refused; a query is told which points have them.
        reader: How the model's batches are read; None where there is no model.
        learn: Whether the reader remembers their format, as in a fit.

    Raises:
        DataError: The loader is empty or can be read only once, or a batch has no points or holds
            NaN or infinity, or the loader fails; the message names the batch.
    """
    reader = reader or BatchReader()
    try:
        for batch in _checked(data, device, reader, once=once, finite=finite, learn=learn):
            reader.index = batch.index
            yield batch
    finally:
        reader.index = None


def _checked(
    data: Any, device: torch.device | None, reader: BatchReader, *, once: bool, finite: bool, learn: bool
) -> Iterator[Batch]:
    if isinstance(data, BatchSource):
        yield from data.checked_batches(device or torch.device("cpu"))
        return
    index = None
    if not once:
        check_repeatable(data, "here they may have to be read several times")
    for index, item in enumerate(_named(_iterate(data, reader))):
        inputs, targets = reader.read(item, index, learn=learn)
        _check_points(inputs, index)
        _check_dtypes((inputs, targets), index)
        inputs, targets = map_tensors(lambda tensor: _prepared(tensor, device), (inputs, targets))
        if finite:
            check_finite(inputs, f"the inputs of batch {index}")
            check_finite(targets, f"the targets of batch {index}")
        yield Batch(index, inputs, targets)
    if index is None:
        raise EmptyDataError("the loader gave no batch; at least one is needed (a shuffled loader with drop_last=True "
                        "and fewer points than its batch size gives none)")  # fmt: skip


def _iterate(data: Any, reader: BatchReader) -> Iterable[Any]:
    if reader.is_one_batch(data):
        return [data]
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        raise DataError(
            "the data are a Dataset of single points; wrap it: torch.utils.data.DataLoader(data, batch_size=…)"
        )
    if isinstance(data, str | bytes):
        raise DataError(f"the data are a {type(data).__name__}; pass a list of them, one per point: [text]")
    try:
        return iter(data)
    except TypeError:
        raise DataError(
            f"data must be a tensor, a (inputs, targets) pair or a loader of them, got {type(data).__name__}"
        ) from None


def _named(items: Iterable[Any]) -> Iterator[Any]:
    """The same items; an exception of the loader is raised with the batch's index, but one of memory as it is."""
    iterator = iter(items)
    for index in count():
        try:
            item = next(iterator)
        except StopIteration:
            return
        except Exception as reason:
            if out_of_memory(reason):
                raise
            raise DataError(f"the loader failed at batch {index}: {type(reason).__name__}: {reason}") from reason
        yield item


def _check_points(inputs: Inputs, index: int) -> None:
    rows = lengths(inputs)
    if rows and not any(rows):
        shape = next((tuple(tensor.shape) for tensor in tensors(inputs) if tensor.dim()), (0,))
        raise DataError(
            f"batch {index} has no points, its inputs have the shape {shape}; at least one point along "
            "the first dimension is needed: leave empty batches out, or look at what selected the points"
        )


def _check_dtypes(tree: Any, index: int) -> None:
    for tensor in tensors(tree):
        if tensor.is_floating_point() and tensor.dtype.itemsize < 2:  # torch stores these, and computes with few
            raise DataError(
                f"batch {index} has a tensor of {str(tensor.dtype).removeprefix('torch.')}, in which torch can hardly "
                "compute; convert it first: tensor.to(torch.float16), or torch.float32"
            )


def _prepared(tensor: Tensor, device: torch.device | None) -> Tensor:
    tensor = tensor if device is None else tensor.to(device)
    # Tensors made in inference mode cannot take part in differentiation; a copy can.
    return tensor.clone() if tensor.is_inference() else tensor


def check_finite(tree: Any, what: str) -> None:
    """Refuse NaN and infinity.

    Raises:
        NotFiniteError: Some tensor has them; the error has the rows, unless a tensor has none.
    """
    for tensor in tensors(tree):
        if (tensor.is_floating_point() or tensor.is_complex()) and not bool(torch.isfinite(tensor).all()):
            bad = (~torch.isfinite(tensor)).reshape(len(tensor), -1).any(1).nonzero() if tensor.dim() else None
            where = "" if bad is None else f", first at place {int(bad[0])} of it"
            raise NotFiniteError(
                f"{what} hold NaN or infinity{where}; remove or repair that point, "
                "or the weights if every point does this",
                None if bad is None else bad[:, 0].tolist(),
            )


class PointCount:
    """How many points a batch is: by its shapes, once the model has confirmed that they tell.

    Args:
        ask: Calls the model on the inputs of a batch.
    """

    def __init__(self, ask: Callable[[Inputs], int]) -> None:
        self._ask = ask
        self._one_length = False

    def __call__(self, batch: Batch) -> int:
        """The model is not called again while all leaves have one length."""
        rows = set(lengths((batch.inputs, batch.targets)))
        if self._one_length and len(rows) == 1:
            return rows.pop()
        points = self._ask(batch.inputs)
        self._one_length = rows == {points}
        return points


def first_of_all(
    items: Iterator[_Item], points: int, size: Callable[[_Item], int], processes: Processes
) -> tuple[list[tuple[_Item, int, int]], bool]:
    """This process' part of the first points of all data, dealt out one by one; what one has not, the others take.

    Args:
        items: Batches of this process, of which no more are read than hold its part.
        points: How many, of all processes together.
        size: How many points an item has.
        processes: Those that share the data.

    Returns:
        Items, each with how many points it has and how many of them are among the first; whether no process has others.
    """
    first: list[tuple[_Item, int, int]] = []
    wanted, lacking, able = 0, points, list(range(processes.size))
    while lacking and able:
        if processes.rank in able:
            wanted += -(-max(0, lacking - able.index(processes.rank)) // len(able))
            while wanted > 0 and (item := next(items, None)) is not None:
                here = size(item)
                first.append((item, here, here))
                wanted -= here
        told = processes.gathered("first points", max(0, wanted))
        lacking, able = sum(told[rank] for rank in able), [rank for rank in able if not told[rank]]
    if wanted < 0:  # the last has more
        item, here, _ = first[-1]
        first[-1] = item, here, here + wanted
    return first, lacking > 0


@dataclass(frozen=True, eq=False)
class CheckedBatches:
    """Batches that were checked before, also none."""

    checked: list[Batch]

    def checked_batches(self, device: torch.device) -> Iterator[Batch]:
        """As `slu.data.batches` gives them."""
        del device  # they are there
        yield from self.checked


@dataclass(eq=False)
class ReadAhead:
    """The batches of some data; those that were read ahead are kept, and the next pass begins with them.

    So `first` and one pass read the data once, and may be given an iterator. A second pass reads them anew. All are
    read where torch's random state is restored afterwards (`Network.evaluating`): the one after `first` continues it.

    Attributes:
        data: A loader of batches, an iterator of them, or one batch.
        reader: How the model's batches are read.
        processes: Those that share the data.

    Cost: the batches that hold the first points, in memory until the pass takes them.
    """

    data: Any
    reader: BatchReader = field(default_factory=BatchReader)
    processes: Processes = ALONE
    _buffer: deque[Batch] = field(default_factory=deque)
    _rest: Iterator[Batch] | None = None
    _random_state: Tensor | None = None

    def __len__(self) -> int:
        return 1 if self.reader.is_one_batch(self.data) else len(self.data)

    def first(self, points: int, device: torch.device, count: Callable[[Inputs], int]) -> CheckedBatches:
        """What is fitted of the first so many points, or of all where there are fewer, as batches.

        Args:
            points: How many, of all processes together; each reads its part. Data that are begun together know it.
            device: Where they are put.
            count: Tells how many points the inputs of a batch are, where their shapes leave it open.
        """
        assert self._rest is None  # one pass continues what was read ahead, not two
        if isinstance(self.data, BegunTogether):
            first, self._rest = self.data.begun(device)
            self._buffer.extend(first)
        else:

            def size(batch: Batch) -> int:
                rows = set(lengths(batch.inputs))
                return rows.pop() if len(rows) == 1 else count(batch.inputs)

            self._rest, first = batches(self.data, device, once=True, reader=self.reader), []
            for batch, here, some in first_of_all(self._rest, points, size, self.processes)[0]:
                self._buffer.append(batch)
                first.append(Batch(batch.index, *take((batch.inputs, batch.targets), slice(0, some), here)))
        self._random_state = torch.default_generator.get_state()
        return CheckedBatches(first)

    def checked_batches(self, device: torch.device) -> Iterator[Batch]:
        """As `slu.data.batches` gives them."""
        rest, state = self._rest or batches(self.data, device, once=True, reader=self.reader), self._random_state
        self._rest = self._random_state = None
        while self._buffer:
            yield self._buffer.popleft()
        if state is not None:  # an augmentation goes on as in a pass without interruption, as every other pass has it
            torch.default_generator.set_state(state)
        yield from rest
