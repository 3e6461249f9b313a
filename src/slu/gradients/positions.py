"""Outputs at several positions of an input: tokens (b, T, C) and pixels (b, C, h, w).

Letters: P positions of an input, C outputs at each, G ≤ P groups of neighbouring positions that are measured together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

MOST_GROUPS = 64
"""Of an input's positions, each of which takes a gradient. Up to so many positions are measured one by one."""

VECTOR_NUMBERS = 1 << 22
"""Of vectors over the outputs that are held at a time, each of one group; those of one group always are."""

IGNORE_INDEX = -100
"""The target of a position that does not count, as torch's cross-entropy and transformers have it."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Where the outputs of a batch are.

    Attributes:
        shape: Of the positions of an input, (T,) or (h, w).
        outputs: C.
        points: b.
        counted: (b, P), true where a position counts.
    """

    shape: tuple[int, ...]
    outputs: int
    points: int
    counted: Tensor

    @property
    def positions(self) -> int:
        """P."""
        return math.prod(self.shape)

    def with_targets(self, targets: Any) -> Grid:
        """The same without the positions whose target is -100."""
        known = isinstance(targets, Tensor) and not targets.is_floating_point()
        if not known or targets.numel() != self.points * self.positions:
            return self
        counts = (targets != IGNORE_INDEX).reshape(self.points, self.positions).to(self.counted.device)
        return Grid(self.shape, self.outputs, self.points, counts & self.counted)

    @cached_property
    def groups(self) -> Tensor:
        """(b, P) the group of every position, and -1 where it does not count.

        Of tokens those that count are divided, so that padding changes no group; of pixels the picture is.
        """
        counted = self.counted
        if len(self.shape) == 1:
            order = counted.long().cumsum(1) - 1
            sizes = -(-counted.sum(1, keepdim=True) // MOST_GROUPS)
            groups = order // sizes.clamp(min=1)
        else:
            places = torch.zeros((), dtype=torch.long, device=counted.device)
            for size, tiles in zip(self.shape, tiling(self.shape), strict=True):
                places = places[..., None] * tiles + torch.arange(size, device=counted.device) * tiles // size
            groups = places.reshape(1, -1).expand(self.points, -1)
        return torch.where(counted, groups, -1)

    @property
    def count(self) -> int:
        """G, of the input with most groups."""
        return 1 + max(0, int(self.groups.max()))

    def split(self, values: Tensor) -> Tensor:
        """(b·P, ...) -> (b, *positions, ...)."""
        return values.reshape(self.points, *self.shape, *values.shape[1:])


def group_count(shape: Sequence[int]) -> int:
    """G of an input all of whose positions count.

    >>> group_count((16,)), group_count((100,)), group_count((64, 64)), group_count(())
    (16, 50, 64, 1)
    """
    if len(shape) == 1:
        return -(-shape[0] // -(-shape[0] // MOST_GROUPS))
    return math.prod(tiling(shape))


def groups_at_once(numbers: int) -> int:
    """Of how many groups vectors over the outputs of a batch are held at a time, where those of one are so many."""
    return max(1, VECTOR_NUMBERS // numbers)


def tiling(shape: Sequence[int]) -> tuple[int, ...]:
    """Into how many tiles a picture is divided along each side: at most `MOST_GROUPS` in all, and as square as can be.

    >>> tiling((8, 8)), tiling((64, 64)), tiling((32, 4)), tiling((2, 3))
    ((8, 8), (8, 8), (16, 4), (2, 3))
    """
    tiles = [min(side, MOST_GROUPS) for side in shape]
    while math.prod(tiles) > MOST_GROUPS:
        tiles[tiles.index(max(tiles))] -= 1
    return tuple(tiles)


def group_means(values: Tensor, grid: Grid) -> Tensor:
    """(b, G, d) of (b, T, d): the means over the positions of every group, zero where an input has fewer groups."""
    groups = grid.groups.to(values.device)
    places = torch.where(groups < 0, grid.count, groups)  # what does not count goes to a group of its own
    sums = values.new_zeros(len(values), grid.count + 1, values.shape[2])
    sums.scatter_add_(1, places[..., None].expand_as(values), torch.where(groups[..., None] < 0, 0.0, values))
    sizes = values.new_zeros(len(values), grid.count + 1).scatter_add_(1, places, torch.ones_like(values[..., 0]))
    return (sums / sizes.clamp(min=1)[..., None])[:, : grid.count]


def tile_means(values: Tensor, shape: Sequence[int]) -> Tensor | None:
    """(b, G, d) of channels first (b, d, *sides): the means over the tiles of positions of that shape.

    None where it has another number of sides, or shorter ones than there are tiles.
    """
    tiles = tiling(shape)
    sides = values.shape[2:]
    if len(sides) != len(tiles) or any(side < count for side, count in zip(sides, tiles, strict=True)):
        return None
    pool = {2: functional.adaptive_avg_pool2d, 3: functional.adaptive_avg_pool3d}.get(len(tiles))
    return None if pool is None else pool(values, tiles).flatten(2).transpose(1, 2)
