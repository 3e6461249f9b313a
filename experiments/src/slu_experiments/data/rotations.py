"""Turned images: the nearest pixel, black where there is none."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slu.errors import DataError, SettingError
from slu_experiments.data.source import Source

ANGLES = tuple(range(15, 181, 15))
"""The paper's, in degrees."""

_TIE = 1e-9  # keeps pixels that fall between two on the same side on every machine


class Rotated:
    """A source of square images, each turned counter-clockwise about its middle.

    Every pixel takes the value of the nearest one of the upright image, or 0 where that lies
    outside: no value is new, so a score cannot find a turned image by its blur. At 90 and 180
    degrees the turn is exact.

    Args:
        source: Images (c, h, h).
        degrees: Any angle.

    Cost: a table of h² positions; one gather per read.
    """

    def __init__(self, source: Source, degrees: float) -> None:
        if len(source.shape) != 3 or source.shape[1] != source.shape[2]:
            raise DataError(f"only square images can be turned; the shape is {source.shape}")
        if not math.isfinite(degrees):
            raise SettingError(f"the angle must be a finite number of degrees, got {degrees}")
        self._source = source
        self._from, self._inside = turn_table(source.shape[1], degrees)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image."""
        return self._source.shape

    def __len__(self) -> int:
        return len(self._source)

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Turned images; the targets are those of the upright ones."""
        images, targets = self._source.read(indices)
        turned = images.flatten(2)[:, :, self._from] * self._inside
        return turned.reshape(images.shape), targets


def turn_table(side: int, degrees: float) -> tuple[Tensor, Tensor]:
    """For each of side² pixels of a turned image: the pixel it comes from, and 1 or 0 for whether there is one."""
    middle = (side - 1) / 2
    # Row and column of each pixel from the middle; rows grow downwards.
    row, column = torch.meshgrid(*[torch.arange(side, dtype=torch.float64) - middle] * 2, indexing="ij")
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    source_row = (cos * row + sin * column + middle + _TIE).round().long()
    source_column = (cos * column - sin * row + middle + _TIE).round().long()
    inside = (source_row >= 0) & (source_row < side) & (source_column >= 0) & (source_column < side)
    places = source_row.clamp(0, side - 1) * side + source_column.clamp(0, side - 1)
    return places.reshape(-1), inside.reshape(-1).to(torch.float32)
