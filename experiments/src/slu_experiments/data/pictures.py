"""Picture files, decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from slu.errors import DataError
from slu_experiments.data.places import damaged, present
from slu_experiments.data.source import checked, unit

if TYPE_CHECKING:
    from PIL.Image import Image


class Pictures:
    """Colour pictures (3, h, w) from files, all brought to one size.

    Args:
        paths: The files, JPEG or PNG.
        targets: (n,) labels or (n, t) numbers.
        size: Height and width of what is read.
        crop: None resizes a picture to the size, whatever its proportions. A number resizes the
            shorter side to it and cuts the size out of the middle.
        name: Of the set, for what goes wrong.

    Cost: the paths; each picture is decoded whenever it is read, 1 to 10 ms.
    """

    def __init__(
        self, paths: Sequence[Path], targets: Tensor, *, size: tuple[int, int], crop: int | None = None, name: str
    ) -> None:
        if not len(paths) or len(paths) != len(targets):
            raise DataError(
                f"{name}: expected as many targets as pictures, one or more; got {len(targets)}, {len(paths)}"
            )
        self._paths, self._targets, self._size, self._crop, self._name = paths, targets, size, crop, name

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one picture."""
        return (3, *self._size)

    def __len__(self) -> int:
        return len(self._paths)

    def absent(self) -> list[Path]:
        """The files that are not there; opening a set looks at the first alone."""
        return [path for path in self._paths if not path.is_file()]

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Pictures in [0, 1] and their targets.

        Raises:
            DataError: A file is cut, or no picture.
        """
        chosen = checked(indices, len(self))
        pixels = np.empty((len(chosen), *self._size, 3), np.uint8)
        for place, index in enumerate(chosen):
            pixels[place] = self._decode(self._paths[index])
        return unit(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()), self._targets[chosen]

    def _decode(self, path: Path) -> np.ndarray:
        from PIL import Image, UnidentifiedImageError

        present(path, self._name)
        try:
            with Image.open(path) as file:
                return np.asarray(self._fit(file.convert("RGB")))
        except (OSError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError) as reason:
            raise damaged(path, f"is no whole picture ({reason})", self._name) from reason

    def _fit(self, picture: Image) -> Image:
        from PIL.Image import Resampling

        height, width = self._size
        if self._crop is None:
            same = picture.size == (width, height)
            return picture if same else picture.resize((width, height), Resampling.BILINEAR)
        scale = self._crop / min(picture.size)
        across, down = (max(self._crop, round(side * scale)) for side in picture.size)
        picture = picture.resize((across, down), Resampling.BILINEAR)
        left, top = (picture.width - width) // 2, (picture.height - height) // 2
        return picture.crop((left, top, left + width, top + height))


def picture_size(path: Path, name: str) -> tuple[int, int]:
    """Height and width of a picture file, from its head alone."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as file:
            return file.height, file.width
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as reason:
        raise damaged(path, f"is no picture ({reason})", name) from reason
