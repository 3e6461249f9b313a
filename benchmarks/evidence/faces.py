"""The study of faces: 37 attributes of CelebA by a small convolutional network, against food and held-out faces.

The faces are the 10,000 at half size that the data folder has: the first four fifths of those without a held-out
attribute are learned from, the last fifth is tested. They and the pictures of Food-101, which come at the same size,
are averaged over 2 × 2 pixels. CelebA is for non-commercial research only, Food-101 for scientific fair use.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.evidence.study import Study, cut
from benchmarks.evidence.training import Trainable, shuffled
from slu_experiments import data
from slu_experiments.data import Memory, Source
from slu_experiments.training import Augmentation, Recipe, split

NAME = "celeba-conv"
OUTSIDE = ("food101", "celeba-bald", "celeba-mustache", "celeba-eyeglasses")
ATTRIBUTES = 37
_SHRINK = 2

RECIPE = Recipe(
    learning_rate=3e-3, epochs=20, milestones=(0.7, 0.9), augmentation=Augmentation(), drop_last=True,
    channels_last=True,
)  # fmt: skip


def network() -> nn.Module:
    """Four convolutions with stride 2 and batch normalization: 246,309 parameters for pictures of 54 × 44."""

    def stage(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]

    stages = [*stage(3, 32), *stage(32, 64), *stage(64, 128), *stage(128, 128)]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, ATTRIBUTES))


def face_study(seed: int, folder: Path, points: int, queries: int) -> Study:
    """The network with some of its data; several labels per picture.

    Cost: 2 ms per picture that is read; a training reads 6,300 once and takes some minutes.
    """
    source = data.open_set("celeba", "train")
    learned = split(len(source))[0]
    kind = Trainable(
        network, [RECIPE], lambda: _shrunk(source, learned), lambda: _shrunk(data.open_set("celeba", "test")),
        likelihood="multilabel",
    )  # fmt: skip
    model, right = kind.trained(NAME, seed, folder)
    order = shuffled(learned, seed)

    def first(name: str) -> list[Tensor]:
        pictures = data.open_set(name, "test")
        return _inputs(pictures, torch.arange(min(queries, len(pictures))))

    return Study(
        name=NAME,
        seed=seed,
        model=model,
        likelihood="multilabel",
        quality={"accuracy": right},
        fitted=_inputs(source, order[:points]),
        apart=_inputs(source, order[points : points + queries]),
        inside=first("celeba"),
        outside={name: first(name) for name in OUTSIDE},
        members=lambda: [kind.trained(NAME, other, folder)[0] for other in (1, 2, 3) if other != seed],
    )


def _shrunk(source: Source, indices: Tensor | None = None) -> Memory:
    """Pictures averaged over 2 × 2 pixels, as bytes in memory, so that an epoch decodes none."""
    indices = torch.arange(len(source)) if indices is None else indices
    inputs, targets = zip(*(source.read(some) for some in indices.split(500)), strict=True)
    return Memory(torch.cat([_bytes(each) for each in inputs]), torch.cat(targets))


def _bytes(pictures: Tensor) -> Tensor:
    return functional.avg_pool2d(pictures, _SHRINK).mul(255).round().to(torch.uint8)


def _inputs(source: Source, indices: Tensor) -> list[Tensor]:
    return cut(_shrunk(source, indices).read(torch.arange(len(indices)))[0])
