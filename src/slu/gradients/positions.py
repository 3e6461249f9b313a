"""Outputs at several positions of an input: tokens (b, T, C) and pixels (b, C, h, w).

Letters: P positions of an input, C outputs at each, G ≤ P groups of neighbours, of which one position is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from slu.data.masks import IGNORE_INDEX
from slu.errors import DataError

MOST_GROUPS = 64
"""Of an input's positions, each of which takes a gradient. Up to so many positions are groups of their own."""

VECTOR_NUMBERS = 1 << 22
"""Of vectors over the outputs that are held at a time, each of one group; those of one group always are."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Where the outputs of a batch are.

    Attributes:
        shape: Of the positions of an input, (T,) or (h, w).
        outputs: C.
        points: b.
        counted: (b, P), true where a position counts.
        present: (b, P), true where the input has a position, with a target or not; None for those that count.
    """

    shape: tuple[int, ...]
    outputs: int
    points: int
    counted: Tensor
    present: Tensor | None = None

    @property
    def positions(self) -> int:
        """P."""
        return math.prod(self.shape)

    def with_targets(self, targets: Any) -> Grid:
        """The same without the positions whose target is -100."""
        aligned = self.aligned(targets)
        if aligned is None or aligned.dim() > 1 or aligned.is_floating_point():
            return self
        counts = (aligned != IGNORE_INDEX).view(self.points, self.positions).to(self.counted.device)
        return replace(self, counted=counts & self.counted, present=self._present)

    def aligned(self, targets: Any) -> Any:
        """(b·P,) targets of all positions, or (b·P, C); None where there are none.

        They come as (b, *positions), or with C numbers for each: last, or of pixels after the points.

        Raises:
            DataError: Of another shape.
        """
        if not isinstance(targets, Tensor):
            return None
        whole, given = (self.points, *self.shape), tuple(targets.shape)
        if len(self.shape) > 1 and given[:1] + given[2:] == whole and given[1] in (1, self.outputs):
            targets = targets.movedim(1, -1)
        elif given != whole and given[:-1] != whole and given != (self.points, self.positions):
            read = f"{' × '.join(map(str, self.shape))} positions of {self.outputs} outputs"
            raise DataError(
                f"the targets have the shape {given}, but the outputs of {self.points} inputs are read as {read}, so "
                f"targets of the shape {whole} are needed. If the outputs are (batch, outputs, positions) or (batch, "
                "height, width, outputs), permute them: forward=lambda model, inputs: model(inputs).movedim(...). Else "
                "give targets for these positions, or none"
            )
        rows = targets.reshape(self.points * self.positions, -1)
        return rows[:, 0] if rows.shape[1] == 1 else rows

    def from_first(self, drawn: Tensor) -> Tensor:
        """(b, P·m) numbers drawn for positions, those of the first token where padding on the left puts it."""
        left = (self._present.cumsum(1) == 0).sum(1, keepdim=True)
        if len(self.shape) > 1 or not bool(left.any()):
            return drawn
        places = torch.arange(drawn.shape[1], device=drawn.device) - drawn.shape[1] // self.positions * left
        return drawn.gather(1, places % drawn.shape[1])

    @cached_property
    def groups(self) -> Tensor:
        """(b, P) the group of every position, and -1 where the input has none.

        Of tokens those of the input are divided, so that neither padding nor targets change a group; of pixels the
        picture is.
        """
        counted = self._present
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
    def _present(self) -> Tensor:
        return self.counted if self.present is None else self.present

    @cached_property
    def count(self) -> int:
        """G, of the input with most groups."""
        return 1 + max(0, int(self.groups.max()))

    @cached_property
    def middles(self) -> Tensor:
        """(b, G) the middle position of every group, at which it is measured; -1 where an input has fewer groups.

        A position of its own, no mean of several: what is measured is alike whatever the length of an input.
        """
        if len(self.shape) > 1:
            every = torch.arange(self.positions, device=self.groups.device).view(1, 1, *self.shape)
            middles = at_tiles(every, self.shape)
            assert middles is not None  # it has the shape itself
            return middles[..., 0].expand(self.points, -1)
        places = torch.where(self.groups < 0, self.count, self.groups)
        sizes = places.new_zeros(self.points, self.count + 1).scatter_add_(1, places, torch.ones_like(places))
        starts = sizes.cumsum(1) - sizes
        by_group = places.argsort(stable=True, dim=1)
        middles = by_group.gather(1, (starts + sizes // 2).clamp(max=self.positions - 1))
        return torch.where(sizes > 0, middles, -1)[:, : self.count]

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


def at_middles(values: Tensor, grid: Grid) -> Tensor:
    """(b, G, d) of (b, T, d): the values at the middle of every group; of any position where there is none."""
    places = grid.middles.to(values.device).clamp(min=0)
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[2]))


def at_tiles(values: Tensor, shape: Sequence[int]) -> Tensor | None:
    """(b, G, d) of channels first (b, d, *sides): the values in the middle of the tiles of positions of that shape.

    None where it has another number of sides.
    """
    tiles = tiling(shape)
    if values.dim() - 2 != len(tiles):
        return None
    for place, (count, side) in enumerate(zip(tiles, values.shape[2:], strict=True)):
        middles = (2 * torch.arange(count, device=values.device) + 1) * side // (2 * count)
        values = values.index_select(2 + place, middles)
    return values.flatten(2).transpose(1, 2)
