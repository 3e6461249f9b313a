"""Which points of a training set are learned from, and how their numbers are scaled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from slu.errors import DataError
from slu.experiments.data import Source
from slu.seeds import stream


@final
class Normalized:
    """A source whose inputs have a mean taken off and are divided by a deviation, channel by channel.

    Args:
        source: Whose inputs are (channels, ...).
        mean, std: One number a channel, or one for all; empty for the inputs as they are.
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


def split(points: int, share: float = 0.9, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Places to learn from and places held back; one split for all networks, as in the paper (seed 0).

    >>> learned, held_back = split(10)
    >>> len(learned), len(held_back), sorted(torch.cat([learned, held_back]).tolist()) == list(range(10))
    (9, 1, True)
    """
    order = torch.randperm(points, generator=stream(seed, "training and validation"))
    learned, held_back = order.tensor_split([max(1, int(share * points))])
    return learned, held_back


def _by_channel(values: Sequence[float], default: float, shape: tuple[int, ...]) -> Tensor:
    numbers = torch.tensor(tuple(values) or (default,), dtype=torch.float32)
    if len(numbers) not in (1, shape[0]):
        raise DataError(f"{len(numbers)} numbers were given for inputs of shape {shape}; expected one or {shape[0]}")
    return numbers.reshape(-1, *[1] * (len(shape) - 1))
