"""The small networks: a multilayer perceptron and LeNet, with tanh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from slu.errors import SettingError

_SMALLEST = 16  # below this nothing is left after two unpadded 5×5 convolutions and two poolings


class MLP(nn.Module):
    """Fully connected layers with an activation between them; inputs are flattened.

    Args:
        sizes: Numbers of units from the inputs to the outputs. The default is the paper's
            network for MNIST, with 15,910 parameters.
        activation: Makes the activation's module.
    """

    def __init__(self, sizes: Sequence[int] = (784, 20, 10), activation: Callable[[], nn.Module] = nn.Tanh) -> None:
        super().__init__()
        if len(sizes) < 2 or min(sizes) < 1:
            raise SettingError(f"sizes must be two or more positive numbers, inputs first; got {tuple(sizes)}")
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), activation()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))


class LeNet(nn.Module):
    """Two 5×5 convolutions without padding, each pooled by two, and three linear layers.

    The defaults are the paper's network for FashionMNIST, with 44,426 parameters.

    Args:
        channels: Channels of the images.
        outputs: Classes.
        side: Height and width of the images.
        activation: Makes the activation's module.
    """

    def __init__(
        self,
        channels: int = 1,
        outputs: int = 10,
        side: int = 28,
        activation: Callable[[], nn.Module] = nn.Tanh,
    ) -> None:
        super().__init__()
        if side < _SMALLEST:
            raise SettingError(f"LeNet needs images of at least {_SMALLEST} pixels per side, got {side}")
        positions = (((side - 4) // 2 - 4) // 2) ** 2
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            activation(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            activation(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(
            nn.Linear(16 * positions, 120),
            activation(),
            nn.Linear(120, 84),
            activation(),
            nn.Linear(84, outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))
