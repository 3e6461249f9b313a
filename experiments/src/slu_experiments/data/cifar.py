"""The binary layout of CIFAR-10 and CIFAR-100: labels, then 3,072 bytes of pixels, one record per image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slu_experiments.data.places import damaged, present
from slu_experiments.data.source import checked, unit

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32

CIFAR10 = {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)}
CIFAR100 = {"train": ("train.bin",), "test": ("test.bin",)}


class CifarRecords:
    """Images (3, 32, 32) and labels, memory-mapped from files of fixed-size records.

    Args:
        paths: The files, one after the other.
        labels: Bytes before the pixels; the last of them is the label (CIFAR-100 has a coarse one first).
        classes: Labels run from 0 to one less.
        name: Of the set, for what goes wrong.

    Cost: the labels; pixels are read from the files a batch at a time.
    """

    def __init__(self, paths: Sequence[Path], *, labels: int, classes: int, name: str) -> None:
        self._records = [_records(path, labels, name) for path in paths]
        self._ends = np.cumsum([len(each) for each in self._records])
        self._first = labels
        columns = []
        for path, records in zip(paths, self._records, strict=True):
            columns.append(records[:, labels - 1].astype(np.int64))
            if columns[-1].max() >= classes:
                raise damaged(path, f"has a label {columns[-1].max()}, expected 0 to {classes - 1}", name)
        self._labels = torch.from_numpy(np.concatenate(columns))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image."""
        return _SHAPE

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels in [0, 1] and labels."""
        chosen = checked(indices, len(self))
        pixels = np.empty((len(chosen), _PIXELS), np.uint8)
        files = np.searchsorted(self._ends, chosen, side="right")
        for number in np.unique(files):
            here = np.flatnonzero(files == number)
            begin = self._ends[number] - len(self._records[number])
            pixels[here] = self._records[number][chosen[here] - begin, self._first :]
        return unit(torch.from_numpy(pixels).reshape(-1, *_SHAPE)), self._labels[chosen]


def open_cifar10(folder: Path, part: str, name: str) -> CifarRecords:
    """CIFAR-10 from `cifar-10-batches-bin`."""
    return CifarRecords([folder / file for file in CIFAR10[part]], labels=1, classes=10, name=name)


def open_cifar100(folder: Path, part: str, name: str) -> CifarRecords:
    """CIFAR-100, its hundred fine labels, from `cifar-100-binary`."""
    return CifarRecords([folder / file for file in CIFAR100[part]], labels=2, classes=100, name=name)


def _records(path: Path, labels: int, name: str) -> np.ndarray:
    size, record = present(path, name).stat().st_size, labels + _PIXELS
    if not size or size % record:
        raise damaged(path, f"has {size:,} bytes, expected a multiple of {record:,}: it is cut or another file", name)
    return np.memmap(path, np.uint8, "r", shape=(size // record, record))
