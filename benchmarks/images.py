"""The real images that the benchmarks need, as they lie below SLU_DATA."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from scipy.ndimage import rotate
from torch import Tensor


def folder(name: str) -> Path:
    """Where a data set lies."""
    return Path(os.environ["SLU_DATA"]) / name


def read_idx(path: Path) -> np.ndarray:
    """An idx.gz file of unsigned bytes, as MNIST's authors lay it out."""
    raw = gzip.decompress(path.read_bytes())
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">u4", dimensions, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def images(name: str, part: str) -> Tensor:
    """(n, 1, 28, 28) in [0, 1], of the part "train" or "t10k"."""
    pixels = read_idx(folder(name) / f"{part}-images-idx3-ubyte.gz").astype(np.float32) / 255
    return torch.from_numpy(pixels)[:, None]


def labels(name: str, part: str) -> Tensor:
    """(n,) class indices."""
    return torch.from_numpy(read_idx(folder(name) / f"{part}-labels-idx1-ubyte.gz").astype(np.int64))


def rotated(pictures: Tensor, degrees: float) -> Tensor:
    turned = rotate(pictures[:, 0].numpy(), degrees, axes=(2, 1), reshape=False, order=0)
    return torch.from_numpy(turned)[:, None]
