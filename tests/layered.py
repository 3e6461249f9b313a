"""Networks drawn at random for the gradients layer by layer."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import reject
from hypothesis import strategies as st
from torch import Tensor, nn

OUTPUTS = 3


class Residual(nn.Module):
    """x + scale · f(x), with f called twice where asked."""

    def __init__(self, inside: nn.Module, twice: bool) -> None:
        super().__init__()
        self.inside = inside
        self.scale = nn.Parameter(torch.randn(()))
        self.twice = twice

    def forward(self, inputs: Tensor) -> Tensor:
        actual = self.inside(inputs)
        return inputs + self.scale * (self.inside(actual.tanh()) if self.twice else actual)


class Mean(nn.Module):
    """(b, C, ...) -> (b, C)."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(2).mean(2)


def _norm(draw: Any, channels: int, dimensions: int) -> nn.Module:
    kind = draw(st.sampled_from(["batch", "group", "none"]))
    if kind == "batch":
        affine = draw(st.booleans())
        norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dimensions - 1](channels, affine=affine)
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        return norm
    return nn.GroupNorm(draw(st.sampled_from([1, channels])), channels) if kind == "group" else nn.Identity()


def _convolution(draw: Any, before: int, after: int, dimensions: int) -> nn.Module:
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    odd = draw(st.booleans())
    same = draw(st.booleans())
    settings: dict[str, Any] = {
        "kernel_size": draw(st.sampled_from([1, 3] if odd or same else [1, 2, 3])),
        "bias": draw(st.booleans()),
        "groups": draw(st.sampled_from([1, 2])),
        "dilation": draw(st.sampled_from([1, 2])) if dimensions < 3 else 1,
        "padding_mode": draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
    }
    if same:
        settings["padding"] = "same"
    else:
        settings |= {"stride": draw(st.sampled_from([1, 2])), "padding": draw(st.sampled_from([1, 2]))}
    return kinds(before, after, **settings)


@st.composite
def convolutional(draw: Any) -> tuple[nn.Module, Any]:
    """Up to three convolutions in one to three dimensions, and a function from batch size to inputs."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    dimensions = draw(st.sampled_from([1, 2, 2, 3]))
    layers: list[nn.Module] = []
    channels = 2
    for _ in range(draw(st.integers(1, 3 if dimensions < 3 else 2))):
        after = draw(st.sampled_from([2, 4]))
        transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dimensions - 1]
        rare = draw(st.integers(0, 3)) == 0
        layers += [transposed(channels, after, 2) if rare else _convolution(draw, channels, after, dimensions)]
        channels = after
        layers += [_norm(draw, channels, dimensions), nn.ReLU(inplace=True) if draw(st.booleans()) else nn.Tanh()]
        if draw(st.booleans()):
            kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
            layers += [Residual(kinds(channels, channels, 3, padding=1), draw(st.booleans()))]
    model = nn.Sequential(*layers, Mean(), nn.Linear(channels, OUTPUTS))
    shape = [draw(st.integers(6, 7)) for _ in range(dimensions)]
    try:
        model.eval()(torch.randn(1, 2, *shape))
    except (RuntimeError, ValueError):  # more padding than there is image
        reject()
    return model, lambda points: torch.randn(points, 2, *shape)


class Tokens(nn.Module):
    """Words through whatever layers were drawn; batches first or sequences first in between."""

    def __init__(self, layers: list[nn.Module], *, padding: int | None, tied: bool, first: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4, padding_idx=padding)
        self.places = nn.Embedding(9, 4)
        self.begin = nn.Parameter(torch.randn(1, 1, 4))
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(4, 7, bias=False)
        if tied:
            self.head.weight = self.words.weight
        self.first = first

    def forward(self, words: Tensor) -> Tensor:
        hidden = torch.cat([self.begin.expand(len(words), -1, -1), self.words(words)], 1)
        hidden = hidden + self.places(torch.arange(hidden.shape[1]))
        hidden = hidden if self.first else hidden.transpose(0, 1)
        for layer in self.layers:
            actual = layer(hidden, hidden, hidden)[0] if isinstance(layer, nn.MultiheadAttention) else layer(hidden)
            hidden = hidden + (actual[0] if isinstance(actual, tuple) else actual)
        hidden = hidden if self.first else hidden.transpose(0, 1)
        return self.head(hidden.mean(1))[:, :OUTPUTS]


@st.composite
def sequential(draw: Any) -> tuple[nn.Module, Any]:
    """An encoder of layers drawn from those of language models."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    first = draw(st.booleans())
    makers = {
        "linear": lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 4, bias=draw(st.booleans()))),
        "layer norm": lambda: nn.LayerNorm(4, elementwise_affine=draw(st.booleans()), bias=draw(st.booleans())),
        "rms norm": lambda: nn.RMSNorm(4),
        "attention": lambda: nn.MultiheadAttention(4, 2, batch_first=first, bias=draw(st.booleans())),
        "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=first),
        "lstm": lambda: nn.LSTM(4, 4, batch_first=first),
        "gru": lambda: nn.GRU(4, 4, batch_first=first),
        "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        "prelu": lambda: nn.PReLU(),
    }
    layers = [makers[kind]() for kind in draw(st.lists(st.sampled_from(sorted(makers)), max_size=3))]
    if layers and draw(st.booleans()):
        layers.append(layers[0])  # called again
    padding = draw(st.sampled_from([None, 0, 3]))
    model = Tokens(layers, padding=padding, tied=draw(st.booleans()), first=first)
    length = draw(st.integers(1, 6))
    return model, lambda points: torch.randint(7, (points, length))
