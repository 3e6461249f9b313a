"""Networks that mislead the gradients layer by layer: rows that are no examples, or stand where data put them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

OUTPUTS = 3


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
    """Windows folded into the batch, after or before the examples, with a table of biases as in Swin."""

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
    """A linear layer whose inputs are parameters: its rows belong to no example, be they as many as examples."""

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
        actual = torch.zeros_like(tokens)
        for expert, chosen in zip(self.experts, (~second, second), strict=True):
            actual[chosen] = expert(tokens[chosen]).tanh()
        return self.out(actual).view(*inputs.shape[:2], -1).mean(1)


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
    """Tokens of all examples one after the other, of each as many as its first number says."""

    def __init__(self) -> None:
        super().__init__()
        self.middle, self.out = nn.Linear(4, 4), nn.Linear(4, OUTPUTS)

    def forward(self, inputs: Tensor) -> Tensor:
        lengths = [3 + int(one[0, 0] > 0) for one in inputs]
        joined = self.middle(torch.cat([one[:length] for one, length in zip(inputs, lengths, strict=True)]))
        return self.out(torch.stack([part.tanh().mean(0) for part in joined.split(lengths)]))


class Picked(nn.Module):
    """Examples in an order read off the data, put together by plain numbers."""

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
    "windows after examples": Windows,
    "windows before examples": lambda: Windows(after=False),
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
"""Each takes inputs (points, 6, 4): as many examples as tokens is the hardest."""

GENERAL = {"hyper": {"codes", "maker.weight", "maker.bias"}, "custom": {"weight"}}
"""What of them must go the general way; of the others nothing, except where rows stand nowhere in particular."""
UNRULY = {"experts", "shuffled", "ragged", "picked"}


def make(name: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MISLEADING[name]().double().eval()


def sequences(points: int, seed: int = 0) -> Tensor:
    return torch.randn(points, 6, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
