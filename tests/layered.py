"""Networks for the gradients layer by layer: drawn at random, and made to mislead."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import reject
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

OUTPUTS = 3


class Residual(nn.Module):
    """x + scale · f(x), with f called twice where asked."""

    def __init__(self, inside: nn.Module, twice: bool) -> None:
        super().__init__()
        self.inside = inside
        self.scale = nn.Parameter(torch.randn(()))
        self.twice = twice

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.inside(inputs)
        return inputs + self.scale * (self.inside(found.tanh()) if self.twice else found)


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
            found = layer(hidden, hidden, hidden)[0] if isinstance(layer, nn.MultiheadAttention) else layer(hidden)
            hidden = hidden + (found[0] if isinstance(found, tuple) else found)
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


class SequenceFirst(nn.Module):
    """Works on (length, batch, features) inside."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, OUTPUTS)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.norm(self.into(inputs.transpose(0, 1)).tanh())).mean(0)


class BatchFirst(SequenceFirst):
    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.norm(self.into(inputs).tanh())).mean(1)


class Windows(SequenceFirst):
    """Windows folded into the batch, after or before the samples, with a table of biases as in Swin."""

    def __init__(self, after: bool = True) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 5))
        self.register_buffer("index", torch.tensor([[0, 1], [3, 1]]))
        self.after = after

    def forward(self, inputs: Tensor) -> Tensor:
        points, length, width = inputs.shape
        windows = inputs.view(points, length // 2, 2, width)
        windows = windows if self.after else windows.transpose(0, 1)
        folded = self.into(windows.reshape(-1, 2, width)) + self.table[self.index].sum(0)[None]
        hidden = self.norm(folded.tanh()).view(*windows.shape[:3], -1)
        return self.out(hidden if self.after else hidden.transpose(0, 1)).mean((1, 2))


class Flat(SequenceFirst):
    """Tokens folded into the batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.into(inputs.flatten(0, 1)).tanh())
        return self.out(hidden).view(*inputs.shape[:2], -1).mean(1)


class Places(nn.Module):
    """Position embeddings that know no batch, looked up in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.out = nn.Embedding(6, 4), nn.Linear(4, OUTPUTS)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out((inputs + self.places(torch.arange(inputs.shape[1]))).tanh()).mean(1)


class Hyper(nn.Module):
    """A linear layer whose inputs are parameters: its rows belong to no sample, be they as many as samples."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.codes, self.maker = nn.Parameter(torch.randn(rows, 2)), nn.Linear(2, 4)
        self.out = nn.Linear(rows, OUTPUTS)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out((inputs.mean(1) @ self.maker(self.codes).T).tanh())


class Experts(nn.Module):
    """Tokens sent to one of two layers by their content."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.out = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), nn.Linear(4, OUTPUTS)

    def forward(self, inputs: Tensor) -> Tensor:
        tokens = inputs.flatten(0, 1)
        second = tokens[:, 0] > 0
        found = torch.zeros_like(tokens)
        for expert, chosen in zip(self.experts, (~second, second), strict=True):
            found[chosen] = expert(tokens[chosen]).tanh()
        return self.out(found).view(*inputs.shape[:2], -1).mean(1)


class Shuffled(nn.Module):
    """Rows in an order that the data decide."""

    def __init__(self) -> None:
        super().__init__()
        self.middle, self.out = nn.Linear(4, 4), nn.Linear(4, OUTPUTS)

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(0, 1)
        order = flat[:, 0].argsort()
        back = order.argsort()
        return self.out(self.middle(flat[order]).tanh()[back].view(inputs.shape)).mean(1)


class Ragged(nn.Module):
    """Tokens of all samples one after the other, of each as many as its first number says."""

    def __init__(self) -> None:
        super().__init__()
        self.middle, self.out = nn.Linear(4, 4), nn.Linear(4, OUTPUTS)

    def forward(self, inputs: Tensor) -> Tensor:
        lengths = [3 + int(one[0, 0] > 0) for one in inputs]
        joined = self.middle(torch.cat([one[:length] for one, length in zip(inputs, lengths, strict=True)]))
        return self.out(torch.stack([part.tanh().mean(0) for part in joined.split(lengths)]))


class Picked(nn.Module):
    """Samples in an order read off the data, put together by plain numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.middle, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, OUTPUTS)

    def forward(self, inputs: Tensor) -> Tensor:
        order = inputs[:, 0, 0].argsort()
        hidden = self.into(inputs[:, 0]).tanh()
        mixed = self.middle(torch.stack([hidden[each] for each in order.tolist()]))
        return self.out(torch.stack([mixed[each].tanh() for each in order.argsort().tolist()]))


class Tied(nn.Module):
    """An embedding's weight as a layer, as a function's argument and as a plain factor."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(7, 4), nn.Linear(4, 4)

    def forward(self, words: Tensor) -> Tensor:
        hidden = F.linear(self.layer(self.words(words).mean(1)), self.layer.weight.tanh(), self.layer.bias)
        return (hidden @ self.words.weight.T)[:, :OUTPUTS] + (hidden @ self.layer.weight)[:, :1]


class InPlace(nn.Module):
    """Every layer's result is overwritten, also where it is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4)
        self.linear, self.out = nn.Linear(4, 4), nn.Linear(4, OUTPUTS)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.conv(inputs.transpose(1, 2)), inplace=True)
        hidden = self.norm(hidden).relu_().transpose(1, 2)
        hidden = self.linear(hidden.contiguous())
        hidden[:, 0] += 1
        hidden.relu_()
        return self.out(hidden).sigmoid_().mean(1)


class Doubled(nn.Linear):
    """A layer whose forward is not its parent's."""

    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs) + inputs @ self.weight.T


class Hooked(nn.Module):
    """Layers with hooks that change what goes in and what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = Doubled(4, 5), nn.Linear(5, OUTPUTS)
        self.into.register_forward_hook(lambda module, args, output: 3 * output)
        self.out.register_forward_pre_hook(lambda module, args: (args[0].sin(),))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.into(inputs.mean(1)).tanh())


class Checkpointed(nn.Module):
    """Parameters inside a part that is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, OUTPUTS)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = checkpoint(lambda x: self.norm(self.into(x)).tanh(), inputs, use_reentrant=False)
        return self.out(hidden).mean(1)


class NoHistory(BatchFirst):
    """A part without derivatives, and a parameter that is nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.nowhere = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = self.into(inputs).tanh()
        return self.out(self.norm(hidden)).mean(1)


class Scaled(nn.Module):
    """Parameters of every shape on their own: a number, a token, a column, made positive or turned."""

    def __init__(self) -> None:
        super().__init__()
        self.number, self.token = nn.Parameter(torch.randn(())), nn.Parameter(torch.randn(1, 6, 4))
        self.column, self.matrix = nn.Parameter(torch.randn(4, 1)), nn.Parameter(torch.randn(4, OUTPUTS))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.number.exp() * (inputs - self.token[:, : inputs.shape[1]])
        hidden = (hidden.transpose(1, 2) * F.softplus(self.column)).tanh().mean(2)
        return torch.addmm(self.matrix[0] * 2, hidden, self.matrix, beta=0.5, alpha=3)


class First(SequenceFirst):
    """Only the first token counts in the end: most rows of the last layer are zero."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.norm(self.into(inputs).tanh()))[:, 0]


class Gated(SequenceFirst):
    """Sequences first; silent where the inputs say so."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.into(inputs.transpose(0, 1)).tanh()) * (inputs[:, :1, :1] > 0).transpose(0, 1)
        return self.out(hidden).mean(0)


class OnlyCustom(nn.Module):
    """A weight that goes through a function written in Python, beside a layer."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight: Tensor, inputs: Tensor) -> Tensor:
            ctx.save_for_backward(weight, inputs)
            return inputs @ weight**3

        @staticmethod
        def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
            weight, inputs = ctx.saved_tensors
            return 3 * weight**2 * (inputs.T @ grad), grad @ (weight**3).T

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, OUTPUTS)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.Cube.apply(self.weight, inputs.mean(1)))


MISLEADING = {
    "sequence first": SequenceFirst,
    "batch first": BatchFirst,
    "windows after samples": Windows,
    "windows before samples": lambda: Windows(after=False),
    "flat tokens": Flat,
    "places": Places,
    "hyper": lambda: Hyper(6),
    "experts": Experts,
    "shuffled": Shuffled,
    "ragged": Ragged,
    "picked": Picked,
    "in place": InPlace,
    "hooked": Hooked,
    "checkpointed": Checkpointed,
    "no history": NoHistory,
    "scaled": Scaled,
    "first": First,
    "gated": Gated,
    "custom": OnlyCustom,
}
"""Each takes inputs (points, 6, 4): as many samples as tokens is the hardest."""

GENERAL = {"hyper": {"codes", "maker.weight", "maker.bias"}, "custom": {"weight"}}
"""What of them must go the general way; of the others nothing, except where rows stand nowhere in particular."""
UNRULY = {"experts", "shuffled", "ragged", "picked"}


def misleading(name: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MISLEADING[name]().double().eval()


def sequences(points: int, seed: int = 0) -> Tensor:
    return torch.randn(points, 6, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
