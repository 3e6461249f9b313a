"""Networks of several kinds at any number of parameters, with activations that are small beside them in most."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

OUTPUTS = 10


def mlp(parameters: int) -> tuple[nn.Module, Tensor]:
    """Four square layers between 100 inputs and the outputs."""
    width = math.isqrt(parameters // 4)
    layers: list[nn.Module] = [nn.Linear(100, width), nn.Tanh()]
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, OUTPUTS)), torch.randn(2, 100)


def conv(parameters: int) -> tuple[nn.Module, Tensor]:
    """Four 3×3 convolutions with BatchNorm, the width doubled once, on 4×4 images."""
    width = math.isqrt(parameters // 63)
    channels = [3, width, width, 2 * width, 2 * width]
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, OUTPUTS)]
    return nn.Sequential(*layers, *head), torch.randn(2, 3, 4, 4)


def wide_conv(parameters: int) -> tuple[nn.Module, Tensor]:
    """Three 5×5 convolutions, of which the second has most of the parameters, on 16×16 images."""
    width = math.isqrt(parameters // 75)
    layers: list[nn.Module] = []
    for before, after in pairwise([3, width, 2 * width, width // 2]):
        layers += [nn.Conv2d(before, after, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * (width // 2), OUTPUTS)), torch.randn(2, 3, 16, 16)


class Encoder(nn.Module):
    """Some encoder layers over tokens, the mean of which is classified."""

    def __init__(self, width: int, words: int = 50, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, OUTPUTS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens)).mean(1))


def transformer(parameters: int) -> tuple[nn.Module, Tensor]:
    """Twelve squares of the width a layer."""
    width = 4 * (math.isqrt(parameters // 48) // 4)
    return Encoder(width), torch.randint(0, 50, (2, 6))


def words(parameters: int) -> tuple[nn.Module, Tensor]:
    """Two layers and a table of fifty words per number of the width, on 64 tokens."""
    width = 4 * (math.isqrt(parameters // 74) // 4)
    return Encoder(width, 50 * width, 2), torch.randint(0, 50 * width, (2, 64))


NETWORKS = {"mlp": mlp, "conv": conv, "wide_conv": wide_conv, "transformer": transformer, "words": words}
