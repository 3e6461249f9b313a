"""Flipped and cropped images, drawn for every sample and epoch from the seed alone."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from slu.errors import SettingError
from slu.seeds import stream

_TRIES = 10


@dataclass(frozen=True)
class Augmentation:
    """A mirror image half of the time, and a random part of the image, resized to the whole.

    Attributes:
        scale: From which to which share of the image's area the part has.
        ratio: From which to which its width over its height is, of an image stretched to a square.
        flip: How often the image is mirrored.
    """

    scale: tuple[float, float] = (1.0, 1.0)
    ratio: tuple[float, float] = (1.0, 1.0)
    flip: float = 0.5

    def __post_init__(self) -> None:
        for name, high in (("scale", 1.0), ("ratio", math.inf)):
            pair = getattr(self, name)
            if len(pair) != 2 or not 0 < pair[0] <= pair[1] <= high:
                raise SettingError(f"{name} must be two rising positive numbers up to {high}, got {pair}")
        if not 0 <= self.flip <= 1:
            raise SettingError(f"flip is a probability, got {self.flip}")

    def draw(self, points: int, seed: int, epoch: int) -> Tensor:
        """What happens to every point in an epoch: (n, 5) of centre x, y, width, height, and the mirror's sign.

        Lengths are in units of the image's. All points are drawn at once, so that a sample's fate does
        not depend on the batch it is in, nor on what ran before.
        """
        generator = stream(seed, "augmentation", epoch)
        wide, high = self._sizes(points, generator)
        place = torch.rand(points, 2, generator=generator)
        mirrored = torch.rand(points, generator=generator) < self.flip
        sign = 1.0 - 2.0 * mirrored.float()
        x = wide / 2 + place[:, 0] * (1 - wide)
        y = high / 2 + place[:, 1] * (1 - high)
        return torch.stack([x, y, wide, high, sign], dim=1)

    def plain(self) -> dict[str, Any]:
        """For a header: what JSON gives back unchanged."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def _sizes(self, points: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Widths and heights: of a few tries the first that fits into the image, else the whole image."""
        draws = torch.rand(points, _TRIES, 2, generator=generator)
        area = self.scale[0] + draws[..., 0] * (self.scale[1] - self.scale[0])
        low, high = map(math.log, self.ratio)
        ratio = (low + draws[..., 1] * (high - low)).exp()
        sizes = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], dim=2)
        fits = (sizes <= 1).all(2)
        first = fits.int().argmax(1)
        chosen = sizes[torch.arange(points), first]
        chosen[~fits.any(1)] = 1.0
        return chosen[:, 0], chosen[:, 1]


def apply(images: Tensor, drawn: Tensor) -> Tensor:
    """Cut, resize (bilinearly) and mirror a batch of images (b, c, h, w) as `Augmentation.draw` says.

    A crop is never smaller in the result, so nothing is aliased; a crop lies inside its image, so an
    affine map of the pixels before it is the same as after it.
    """
    if images.dim() != 4:
        raise SettingError(f"only images (b, c, h, w) can be flipped and cropped, got inputs of {tuple(images.shape)}")
    x, y, wide, high, sign = drawn.to(images).unbind(1)
    nothing = torch.zeros_like(x)
    # grid_sample counts from -1 to 1 over the image.
    rows = [torch.stack([sign * wide, nothing, 2 * x - 1], 1), torch.stack([nothing, high, 2 * y - 1], 1)]
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
