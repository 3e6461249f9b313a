"""What every data set is: points that are read when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from slu.errors import DataError

_BATCH = 500


@runtime_checkable
class Source(Protocol):
    """Points by their number; nothing is decoded before it is read.

    Attributes:
        shape: Of one input, (1, 28, 28).
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (b, *shape) in float32 and their targets, in the order of the indices (b,).

        Images lie in [0, 1] as they are in the files: normalizing is the reader's affair.
        Targets are labels (b,) in int64, or numbers (b, t) in float32 where there are several
        attributes (0 and 1) or a regression.
        """
        ...


class Memory:
    """A set that is held in memory, images as the bytes they are stored in.

    Args:
        inputs: (n, ...); bytes are divided by 255 when they are read, anything else becomes float32.
        targets: (n,) labels, or (n, t).

    Cost: what the two tensors take; a batch in float32 per read.
    """

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        if not len(inputs) or len(inputs) != len(targets):
            raise DataError(f"expected as many targets as inputs, one or more; got {len(targets)} and {len(inputs)}")
        self._inputs, self._targets = inputs, targets

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return tuple(self._inputs.shape[1:])

    def __len__(self) -> int:
        return len(self._inputs)

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the chosen points."""
        chosen = torch.from_numpy(checked(indices, len(self)))
        return unit(self._inputs[chosen]), self._targets[chosen]


class Subset:
    """Some points of another source, in an order of their own.

    Cost: the indices.
    """

    def __init__(self, source: Source, indices: Tensor | Sequence[int]) -> None:
        self._source = source
        self._indices = torch.from_numpy(checked(torch.as_tensor(indices, dtype=torch.int64), len(source)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return self._source.shape

    def __len__(self) -> int:
        return len(self._indices)

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The points at these positions of the subset."""
        return self._source.read(self._indices[checked(indices, len(self))])


class Normalized:
    """A source of which the inputs have their mean subtracted and are divided by a deviation, per channel.

    Args:
        source: Of inputs (channels, ...).
        mean, std: One number per channel, or one for all; empty for the inputs as they are.
    """

    def __init__(self, source: Source, mean: Sequence[float] = (), std: Sequence[float] = ()) -> None:
        self._source = source
        self._mean, self._std = _by_channel(mean, 0.0, source.shape), _by_channel(std, 1.0, source.shape)
        if not bool((self._std > 0).all()):
            raise DataError(f"every deviation must be positive, got {tuple(std)}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return self._source.shape

    def __len__(self) -> int:
        return len(self._source)

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The points at these places, normalized."""
        inputs, targets = self._source.read(indices)
        return (inputs - self._mean) / self._std, targets


def batches(source: Source, size: int = _BATCH, limit: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """The points in their order, a batch at a time; the last one may be smaller.

    Args:
        source: Where from.
        size: Points per batch.
        limit: Stop after this many points.

    Cost: one batch in memory.
    """
    for chosen in torch.arange(_few(source, limit)).split(size):
        yield source.read(chosen)


def stack(source: Source, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """All points, or the first few, as two tensors.

    Cost: every point in float32; for what may not fit, use `batches`.
    """
    first_inputs, first_targets = source.read(torch.arange(min(1, _few(source, limit))))
    n = _few(source, limit)
    inputs = first_inputs.new_empty((n, *first_inputs.shape[1:]))
    targets = first_targets.new_empty((n, *first_targets.shape[1:]))
    done = 0
    for x, y in batches(source, limit=limit):
        inputs[done : done + len(x)], targets[done : done + len(x)] = x, y
        done += len(x)
    return inputs, targets


def unit(values: Tensor) -> Tensor:
    """Bytes as float32 in [0, 1]; other numbers as float32."""
    if values.dtype == torch.uint8:
        return values.to(torch.float32).div_(255)
    return values.to(torch.float32)


def checked(indices: Tensor, n: int) -> np.ndarray:
    """The indices as an array (b,) of whole numbers from 0 to n - 1.

    Raises:
        DataError: They are something else.
    """
    array = np.asarray(indices.detach().cpu() if isinstance(indices, Tensor) else indices)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(f"expected indices (b,) of whole numbers; got shape {array.shape} of {array.dtype}")
    if len(array) and not (array.min() >= 0 and array.max() < n):
        raise DataError(f"expected indices from 0 to {n - 1}; they run from {array.min()} to {array.max()}")
    return array.astype(np.int64)


def _few(source: Source, limit: int | None) -> int:
    if limit is not None and limit < 1:
        raise DataError(f"a limit of {limit} points leaves none; take 1 or more, or None for all")
    return len(source) if limit is None else min(limit, len(source))


def _by_channel(values: Sequence[float], default: float, shape: tuple[int, ...]) -> Tensor:
    numbers = torch.tensor(tuple(values) or (default,), dtype=torch.float32)
    if len(numbers) not in (1, shape[0]):
        raise DataError(f"{len(numbers)} numbers were given for inputs of shape {shape}; expected one or {shape[0]}")
    return numbers.reshape(-1, *[1] * (len(shape) - 1))
