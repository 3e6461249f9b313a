"""CIFAR-10-C's own files: for each corruption 5 × 10,000 images, the severities one after the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slu_experiments.data.places import damaged, present
from slu_experiments.data.source import checked, unit

FOLDER = "CIFAR-10-C"
SET = "cifar10-c"
IMAGES = 10_000
_SHAPE = (32, 32, 3)
_LEVELS = 5


class StoredCorruption:
    """One corruption at one severity, memory-mapped; the targets are in the order of CIFAR-10's test set.

    Args:
        folder: `CIFAR-10-C`.
        kind: One of KINDS.
        severity: 1 to 5.

    Cost: the labels; images are read from the file a batch at a time.
    """

    def __init__(self, folder: Path, kind: str, severity: int) -> None:
        images, labels = (read_npy(folder / f"{each}.npy") for each in (kind, "labels"))
        if images.shape[1:] != _SHAPE or images.dtype != np.uint8 or not len(images) or len(images) % _LEVELS:
            content = f"{images.shape} of {images.dtype}"
            raise damaged(folder / f"{kind}.npy", f"holds {content}, expected (5 n, 32, 32, 3) bytes", SET)
        if labels.shape != images.shape[:1]:
            raise damaged(folder / "labels.npy", f"holds {labels.shape} labels for {len(images)} images", SET)
        each = len(images) // _LEVELS
        begin = (severity - 1) * each
        self._images = images[begin : begin + each]
        self._labels = torch.from_numpy(labels[begin : begin + each].astype(np.int64))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image."""
        return (3, 32, 32)

    def __len__(self) -> int:
        return len(self._images)

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images in [0, 1] and labels."""
        chosen = checked(indices, len(self))
        pixels = torch.from_numpy(self._images[chosen]).permute(0, 3, 1, 2).contiguous()
        return unit(pixels), self._labels[chosen]


def read_npy(path: Path) -> np.ndarray:
    """A .npy file of whole numbers, memory-mapped; anything that would have to be unpickled is refused."""
    try:
        array = np.load(present(path, SET), mmap_mode="r")
    except (ValueError, OSError, EOFError) as reason:
        raise damaged(path, f"is no whole .npy file ({reason})", SET) from reason
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
        raise damaged(path, "is no .npy file of whole numbers", SET)
    return array
