"""From whatever a user passes as data to checked batches on the model's device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from slu.errors import DataError

Inputs: TypeAlias = Any
"""What the model is called with: a tensor, or a tuple, list or dict of tensors."""


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


def is_one_batch(data: Any) -> bool:
    """Whether data is itself a batch (a tensor, a dict, a tuple) rather than a loader of batches."""
    return isinstance(data, Tensor | Mapping | tuple)


def batch_count(data: Any) -> int | None:
    """How many batches there are; None where a loader does not know, as over an iterable data set."""
    if is_one_batch(data):
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


def batches(data: Any, device: torch.device | None, *, once: bool = False) -> Iterator[Batch]:
    """Every batch of the data once, on the device, checked for points, NaN and infinity.

    Args:
        data: A loader (anything that can be iterated again and again) of `(inputs, targets)`
            or of inputs alone; or one batch, which is a tensor, a dict, or such a pair.
        device: Where the batches are put; None for where they are.
        once: Whether the data are read this once only, so that an iterator will do.

    Raises:
        DataError: The loader is empty or can be read only once, or a batch has no points or holds
            NaN or infinity, or the loader fails; the message names the batch.
    """
    if isinstance(data, BatchSource):
        yield from data.checked_batches(device or torch.device("cpu"))
        return
    index = None
    if not once:
        check_repeatable(data, "here they may have to be read several times")
    for index, item in enumerate(_named(_iterate(data))):
        inputs, targets = _split(item, index)
        _check_points(inputs, index)
        inputs, targets = map_tensors(lambda tensor: _prepared(tensor, device), (inputs, targets))
        check_finite(inputs, f"the inputs of batch {index}")
        check_finite(targets, f"the targets of batch {index}")
        yield Batch(index, inputs, targets)
    if index is None:
        raise DataError("the loader gave no batch; at least one is needed (a shuffled loader with drop_last=True "
                        "and fewer points than its batch size gives none)")  # fmt: skip


def _iterate(data: Any) -> Iterable[Any]:
    if is_one_batch(data):
        return [data]
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        raise DataError(
            "the data are a Dataset of single points; wrap it: torch.utils.data.DataLoader(data, batch_size=…)"
        )
    if isinstance(data, np.ndarray):
        raise DataError("the data are a numpy array; pass torch.from_numpy(data), in the model's type")
    if _is_pair(data):
        raise DataError("a list of inputs and targets is read as two batches; pass the pair as a tuple: tuple(batch)")
    try:
        return iter(data)
    except TypeError:
        raise DataError(
            f"data must be a tensor, a (inputs, targets) pair or a loader of them, got {type(data).__name__}"
        ) from None


def _named(items: Iterable[Any]) -> Iterator[Any]:
    """The same items; an exception of the loader is raised with the batch's index."""
    iterator = iter(items)
    for index in count():
        try:
            item = next(iterator)
        except StopIteration:
            return
        except Exception as reason:
            raise DataError(f"the loader failed at batch {index}: {type(reason).__name__}: {reason}") from reason
        yield item


def _is_pair(data: Any) -> bool:
    """Whether a list is one batch as a DataLoader yields it, [inputs, targets], rather than two batches."""
    if not isinstance(data, list) or len(data) != 2 or not all(isinstance(part, Tensor) for part in data):
        return False
    first, second = data
    return len(first) == len(second) and (first.shape[1:] != second.shape[1:] or first.dtype != second.dtype)


def _split(item: Any, index: int) -> tuple[Inputs, Any]:
    if isinstance(item, tuple | list):
        if len(item) == 1:
            return item[0], None
        if len(item) == 2:
            return item[0], item[1]
        raise DataError(
            f"batch {index} is a {type(item).__name__} of {len(item)}; expected inputs or an (inputs, targets) pair. "
            "If these are batches, pass them as a list; several inputs go as ((first, second), targets) or as a dict"
        )
    return item, None


def _check_points(inputs: Inputs, index: int) -> None:
    rows = [tensor for tensor in tensors(inputs) if tensor.dim()]
    if rows and not any(len(tensor) for tensor in rows):
        raise DataError(
            f"batch {index} has no points, its inputs have the shape {tuple(rows[0].shape)}; at least one point along "
            "the first dimension is needed: leave empty batches out, or look at what selected the points"
        )


def _prepared(tensor: Tensor, device: torch.device | None) -> Tensor:
    tensor = tensor if device is None else tensor.to(device)
    # Tensors made in inference mode cannot take part in differentiation; a copy can.
    return tensor.clone() if tensor.is_inference() else tensor


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """The same structure with every tensor replaced; anything else stays."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {key: map_tensors(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(function, value) for value in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(map_tensors(function, value) for value in tree)
    return tree


def tensors(tree: Any) -> list[Tensor]:
    """Every tensor of a structure, in order.

    The structure is not built again, as `map_tensors` does: a packed sequence takes only tensors that belong together.
    """
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, tuple | list) else ()
    return [tensor for part in parts for tensor in tensors(part)]


def counts_points(tensor: Tensor, points: int) -> bool:
    """Whether a tensor has one row per point; one that has not is shared by all points of the batch."""
    return tensor.dim() > 0 and len(tensor) == points


def take(inputs: Inputs, chunk: slice, points: int) -> Inputs:
    """Some points of a batch; tensors shared by all points stay whole."""
    return map_tensors(lambda tensor: tensor[chunk] if counts_points(tensor, points) else tensor, inputs)


def check_finite(tree: Any, what: str) -> None:
    for tensor in tensors(tree):
        if (tensor.is_floating_point() or tensor.is_complex()) and not bool(torch.isfinite(tensor).all()):
            bad = (~torch.isfinite(tensor)).reshape(len(tensor), -1).any(1).nonzero() if tensor.dim() else None
            where = "" if bad is None else f", first at place {int(bad[0])} of it"
            raise DataError(
                f"{what} hold NaN or infinity{where}; remove or repair that point, "
                "or the weights if every point does this"
            )


@dataclass(eq=False)
class ReadAhead:
    """The batches of some data; those that were read ahead are kept, and the next pass begins with them.

    So `first` and one pass read the data once, and may be given an iterator. A second pass reads them anew. All are
    read where torch's random state is restored afterwards (`Network.evaluating`): the one after `first` continues it.

    Attributes:
        data: A loader of batches, an iterator of them, or one batch.

    Cost: the batches that hold the first points, in memory until the pass takes them.
    """

    data: Any
    _buffer: deque[Batch] = field(default_factory=deque)
    _rest: Iterator[Batch] | None = None
    _random_state: Tensor | None = None

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
        self._random_state = torch.default_generator.get_state()
        return taken

    def checked_batches(self, device: torch.device) -> Iterator[Batch]:
        """As `slu.data.batches` gives them."""
        rest, state = self._rest or batches(self.data, device, once=True), self._random_state
        self._rest = self._random_state = None
        while self._buffer:
            yield self._buffer.popleft()
        if state is not None:  # an augmentation goes on as in a pass without interruption, as every other pass has it
            torch.default_generator.set_state(state)
        yield from rest
