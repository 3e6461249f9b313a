"""scikit-learn's 8 × 8 digits, with some classes kept away from the network.

The set comes with scikit-learn: nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from slu.errors import SettingError
from slu.seeds import stream
from slu_experiments.data.source import Memory

_BRIGHTEST = 16.0
_DIGITS = range(10)


@dataclass(frozen=True)
class Digits:
    """Images (n, 1, 8, 8) with pixels in [0, 1], and what is on them.

    Attributes:
        classes: The digit behind each label: label i stands for classes[i].
        train_images, train_labels: What a network may learn from.
        test_images, test_labels: The same classes, unseen.
        held_out_images: Every image of the classes that were held out.
        held_out_digits: The digits on them.
    """

    classes: tuple[int, ...]
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    held_out_images: Tensor
    held_out_digits: Tensor

    @property
    def test_digits(self) -> Tensor:
        """The digits on the test images, where `test_labels` has their labels."""
        return torch.tensor(self.classes)[self.test_labels]


def load(held_out: Sequence[int] = (8, 9), *, test_share: float = 0.3, seed: int = 0) -> Digits:
    """The digits, split: held-out classes, and a seeded train and test set of the others.

    Args:
        held_out: Digits that no training or test image shows; the rest are relabelled from 0.
        test_share: The part of the remaining images that is kept for testing.
        seed: Of the split.
    """
    classes = tuple(digit for digit in _DIGITS if digit not in held_out)
    if not set(held_out) <= set(_DIGITS) or len(classes) < 2:
        raise SettingError(f"held_out must name digits from 0 to 9 and leave two or more; got {tuple(held_out)}")
    if not 0 < test_share < 1:
        raise SettingError(f"test_share must lie between 0 and 1, got {test_share}")
    pixels, digits = _stored()
    images = torch.from_numpy((pixels / _BRIGHTEST).astype(np.float32)).reshape(-1, 1, 8, 8)
    digits = torch.from_numpy(digits).long()
    labels = torch.full((len(_DIGITS),), -1)
    labels[list(classes)] = torch.arange(len(classes))
    labels = labels[digits]

    kept = torch.nonzero(labels >= 0).squeeze(1)
    kept = kept[torch.randperm(len(kept), generator=stream(seed, "digits split"))]
    test, train = kept.tensor_split([round(test_share * len(kept))])
    return Digits(
        classes=classes,
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
        held_out_images=images[labels < 0],
        held_out_digits=digits[labels < 0],
    )


@cache
def _stored() -> tuple[np.ndarray, np.ndarray]:
    """Read once: scikit-learn keeps them as a text, which takes longer than a small experiment."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    return np.asarray(pixels), np.asarray(digits)


def rotated(images: Tensor, quarter_turns: int = 1) -> Tensor:
    """The images turned counter-clockwise by multiples of 90 degrees: exact, no interpolation.

    A turned image has the very pixels of the upright one, so a score cannot find it by its
    brightness or blur.
    """
    return torch.rot90(images, quarter_turns, dims=(-2, -1)).contiguous()


def open_digits(part: str) -> Memory:
    """The digits 0 to 7 as a source, split by the seed 0: what `load` gives without arguments."""
    data = load()
    if part == "train":
        return Memory(data.train_images, data.train_labels)
    return Memory(data.test_images, data.test_labels)


def open_held_out_digits() -> Memory:
    """Every 8 and 9; the targets are the digits, for which a network trained on the others has no label."""
    data = load()
    return Memory(data.held_out_images, data.held_out_digits)
