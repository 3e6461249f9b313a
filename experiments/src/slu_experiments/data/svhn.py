"""SVHN's cropped digits: MATLAB files with X (32, 32, 3, n) and y (n, 1). For non-commercial use only."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import torch
from scipy.io.matlab import MatReadError

from slu_experiments.data.places import damaged, present
from slu_experiments.data.source import Memory

_SHAPE = (32, 32, 3)
_ZERO = 10  # the label of the digit 0
# What scipy raises for files that are cut or something else; its own error is an Exception of no further kind.
_UNREADABLE = (MatReadError, ValueError, TypeError, KeyError, EOFError, OSError, zlib.error, NotImplementedError)


def open_svhn(folder: Path, part: str, name: str) -> Memory:
    """Images (3, 32, 32) and the digits on them.

    Cost: MATLAB's files are compressed and cannot be mapped: the images are held as bytes,
    80 MB for the 26,032 of the test set, 225 MB for training.

    Raises:
        MissingDataError: The file is not there.
        DataError: It is cut, no MATLAB file, or holds something else.
    """
    from scipy.io import loadmat

    path = present(folder / f"{part}_32x32.mat", name)
    try:
        content = loadmat(path, variable_names=["X", "y"])
    except _UNREADABLE as reason:
        raise damaged(path, f"is no whole MATLAB file ({reason})", name) from reason
    if not {"X", "y"} <= set(content):
        raise damaged(path, f"holds {sorted(content)}, expected X and y", name)
    images, labels = np.asarray(content["X"]), np.asarray(content["y"]).reshape(-1)
    if images.shape != (*_SHAPE, len(labels)) or images.dtype != np.uint8:
        found_shape = f"X {images.shape} of {images.dtype} and {len(labels)} labels"
        raise damaged(path, f"holds {found_shape}, expected (32, 32, 3, n) bytes and n", name)
    if not len(labels) or labels.min() < 1 or labels.max() > _ZERO:
        raise damaged(path, f"has labels outside 1 to {_ZERO}, or none", name)
    pixels = torch.from_numpy(np.ascontiguousarray(images.transpose(3, 2, 0, 1)))
    return Memory(pixels, torch.from_numpy(labels.astype(np.int64) % _ZERO))
