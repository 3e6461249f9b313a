"""Networks with random weights for the measurements of cost, and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from slu_experiments.models import MLP, LeNet, ResNet

WORDS, TOKENS = 4000, 128


class Encoder(nn.Module):
    """Transformer layers over words, the mean of which is classified; no dropout."""

    def __init__(self, width: int, depth: int, words: int = WORDS, outputs: int = 10, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layers(self.words(words)).mean(1))


class _Block(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        same = stride == 1 and channels == width
        shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.shortcut = nn.Identity() if same else shortcut

    def forward(self, x: Tensor) -> Tensor:
        return (self.residual(x) + self.shortcut(x)).relu()


def resnet18(outputs: int = 10) -> nn.Module:
    """The usual ResNet-18 with its 7×7 stem, 11,181,642 parameters for ten classes."""
    stem = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    stages = [
        _Block(channels, width, stride)
        for before, width in ((64, 64), (64, 128), (128, 256), (256, 512))
        for channels, stride in ((before, 1 if width == 64 else 2), (width, 1))
    ]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, outputs))


@dataclass(frozen=True)
class Subject:
    """A network whose cost is measured.

    Attributes:
        build: Makes it, from the number of outputs.
        draw: Makes that many inputs.
        batch: Inputs per batch of a fit.
        points: The sizes of the measured fits: 5,000, or two smaller ones, from which 5,000 are extrapolated.
        rounds: How often a fit is measured.
        convolutional: Whether the aims for convolutions apply.
    """

    build: Callable[[int], nn.Module]
    draw: Callable[[int], Tensor]
    batch: int
    points: tuple[int, ...]
    rounds: int
    convolutional: bool

    def network(self, outputs: int = 10) -> nn.Module:
        """In evaluation mode, as SLU evaluates it, with the same random weights at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build(outputs).eval()

    def batches(self, points: int, outputs: int = 10) -> list[tuple[Tensor, Tensor]]:
        """(inputs, targets) of random points, the same at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            inputs, targets = self.draw(points), torch.randint(outputs, (points,))
        return list(zip(inputs.split(self.batch), targets.split(self.batch), strict=True))


def _images(channels: int, side: int) -> Callable[[int], Tensor]:
    return lambda points: torch.randn(points, channels, side, side)


def mlp(width: int) -> Callable[[int], nn.Module]:
    """Two hidden layers of ReLU units over 784 inputs."""
    return lambda outputs: MLP((784, width, width, outputs), nn.ReLU)


# The larger networks are fitted on more points than the scale reads first, a tenth held out, and than the rank, so that
# the time is a line in n from the smaller size on.
SUBJECTS: dict[str, Subject] = {
    "LeNet": Subject(lambda outputs: LeNet(outputs=outputs), _images(1, 28), 128, (5000,), 5, True),
    "ResNet 272k": Subject(lambda outputs: ResNet(outputs=outputs), _images(3, 32), 128, (5000,), 3, True),
    "MLP 20M": Subject(mlp(4096), _images(1, 28), 128, (768, 1536), 5, False),
    "encoder 10M": Subject(
        lambda outputs: Encoder(384, 5, outputs=outputs), lambda points: torch.randint(WORDS, (points, TOKENS)),
        32, (640, 896), 2, False,
    ),
    "ResNet-18 11M": Subject(resnet18, _images(3, 64), 64, (640, 1280), 3, True),
}  # fmt: skip


def parameters(model: nn.Module) -> int:
    """p."""
    return sum(value.numel() for value in model.parameters())


def rows_and_columns(model: nn.Module) -> int:
    """Of all weights seen as matrices (first dimension, the rest), vectors as they are: what a factored scale keeps."""
    total = 0
    for value in model.parameters():
        sizes = [size for size in value.shape if size > 1]
        total += sizes[0] + prod(sizes[1:]) if len(sizes) > 1 else value.numel()
    return total
