"""Corrupted images, made as they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slu.errors import DataError, MissingDataError, SettingError, unknown
from slu.seeds import derived_seed
from slu_experiments.data.corruptions import blur, digital, noise, weather
from slu_experiments.data.corruptions.strengths import FROST, KINDS, SEVERITIES, STRENGTHS
from slu_experiments.data.source import Source, checked

_CORRUPT: dict[str, Callable[[np.ndarray, Any, noise.Draws], np.ndarray]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "glass_blur": blur.glass_blur,
    "defocus_blur": blur.defocus_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "fog": weather.fog,
    "snow": weather.snow,
    "spatter": weather.spatter,
    "contrast": digital.contrast,
    "brightness": digital.brightness,
    "saturate": digital.saturate,
    "jpeg_compression": digital.jpeg_compression,
    "pixelate": digital.pixelate,
    "elastic_transform": digital.elastic_transform,
}


class Corrupted:
    """A source of images (3, 32, 32), each corrupted as in CIFAR-10-C.

    An image's draws depend on the seed, the corruption, the severity and its number, on nothing
    else: however the set is cut into batches, it holds the same images. Values are rounded to
    the 256 that a file can hold.

    Args:
        source: Colour images of equal sides, a power of two.
        kind: One of KINDS.
        severity: 1 to 5.
        seed: Of the draws.

    Cost: nothing is kept. 0.05 to 1 ms per image on one core; fog, zoom and motion blur take longest.
    """

    def __init__(self, source: Source, kind: str, severity: int, seed: int = 0) -> None:
        if kind not in KINDS:
            raise unknown("corruption", kind, KINDS)
        if severity not in SEVERITIES:
            raise SettingError(f"severity must be 1 to 5, got {severity}")
        if kind == FROST:
            raise MissingDataError(
                "frost cannot be generated: it needs others' pictures of frost. Get the benchmark's own images with: "
                "slu-paper data fetch cifar10-c"
            )
        c, h, *w = source.shape
        if c != 3 or w != [h] or h & (h - 1):
            raise DataError(f"corruptions need colour images (3, h, h) with h a power of two; got {source.shape}")
        self._source, self._kind, self._severity, self._seed = source, kind, severity, seed

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image."""
        return self._source.shape

    def __len__(self) -> int:
        return len(self._source)

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Corrupted images in [0, 1]; the targets are those of the clean ones."""
        images, targets = self._source.read(indices)
        if not len(images):
            return images, targets
        purpose = ("corruption", self._kind, self._severity)
        numbers = checked(indices, len(self)).tolist()
        draws = [np.random.default_rng(derived_seed(self._seed, *purpose, number)) for number in numbers]
        clean = images.permute(0, 2, 3, 1).to(torch.float64).numpy()
        strength = STRENGTHS[self._kind][self._severity - 1]
        worn = np.clip(_CORRUPT[self._kind](clean, strength, draws), 0, 1)
        stored = np.rint(worn * 255).astype(np.float32) / np.float32(255)
        return torch.from_numpy(np.ascontiguousarray(stored.transpose(0, 3, 1, 2))), targets
