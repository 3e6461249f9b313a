"""The layout of MNIST and its relatives: gzipped idx files of unsigned bytes."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch

from slu_experiments.data.places import damaged, present
from slu_experiments.data.source import Memory

_FILES = {"train": "train", "test": "t10k"}
_BYTES = 0x08  # the idx code of unsigned bytes
_DENSEST = 1100  # gzip never packs more than this many bytes into one
_SIDE, _CLASSES = 28, 10


def open_idx(folder: Path, part: str, name: str) -> Memory:
    """One part of a set laid out as MNIST: images (n, 1, 28, 28) and labels from 0 to 9.

    Cost: the images are unpacked once and held as bytes, 47 MB for 60,000.

    Raises:
        MissingDataError: A file is not there.
        DataError: A file is cut, no idx file, or not of this shape.
    """
    images_path, labels_path = (folder / f"{_FILES[part]}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    labels = read_idx(labels_path, name)
    images = read_idx(images_path, name)
    if images.shape[1:] != (_SIDE, _SIDE):
        raise damaged(images_path, f"holds {images.shape}, expected (n, {_SIDE}, {_SIDE})", name)
    if labels.shape != images.shape[:1] or not len(labels):
        raise damaged(labels_path, f"holds {labels.shape} labels for {len(images)} images", name)
    if labels.max() >= _CLASSES:
        raise damaged(labels_path, f"has a label {labels.max()}, expected 0 to {_CLASSES - 1}", name)
    return Memory(torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64)))


def read_idx(path: Path, name: str) -> np.ndarray:
    """The array of bytes in a gzipped idx file.

    Four bytes say the type and the number of dimensions, then come the sizes, then the values.

    Raises:
        MissingDataError: There is no such file.
        DataError: It is not gzip, cut, longer than it says, or of another type.
    """
    present(path, name)
    try:
        with gzip.open(path) as file:
            magic = file.read(4)
            if len(magic) < 4 or magic[:3] != bytes((0, 0, _BYTES)) or not 1 <= magic[3] <= 3:
                raise damaged(path, f"begins with {magic.hex(' ')}, not as an idx file of bytes does", name)
            sizes = file.read(4 * magic[3])
            if len(sizes) < 4 * magic[3]:
                raise EOFError
            shape = tuple(int.from_bytes(sizes[i : i + 4], "big") for i in range(0, len(sizes), 4))
            # Looked at before memory is asked for: a damaged header may promise anything.
            if int(np.prod(shape, dtype=object)) > _DENSEST * path.stat().st_size:
                raise damaged(path, f"is too short to hold the {shape} it promises", name)
            values = np.empty(shape, np.uint8)
            _fill(file, values.reshape(-1).data)
            if file.read(1):
                raise damaged(path, f"is longer than the {shape} it promises", name)
    except EOFError as reason:
        raise damaged(path, "is cut: it ends before the values it promises", name) from reason
    except (gzip.BadGzipFile, zlib.error) as reason:
        raise damaged(path, f"is no whole gzip file ({reason})", name) from reason
    return values


def _fill(file: gzip.GzipFile, buffer: memoryview) -> None:
    done = 0
    while done < len(buffer):
        got = file.readinto(buffer[done:])
        if not got:
            raise EOFError
        done += got
