"""A multilayer perceptron."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from slu.errors import SettingError


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
