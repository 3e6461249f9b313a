"""Networks that people write themselves: recurrent, over several inputs, graphs, tables of indices, experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from zoo.entry import BATCH, CLASSES, POINTS, Entry, generator, per_input, seeded

WIDTH = 5
LONGEST = 6
_NODES = POINTS
_ITEMS = 30


def labels(seed: int = 1) -> Tensor:
    return torch.randint(CLASSES, (POINTS,), generator=generator(seed))


def tables(*tensors: Tensor) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), BATCH)


def lengths() -> Tensor:
    return torch.randint(2, LONGEST + 1, (POINTS,), generator=generator(2))


def sequences() -> Tensor:
    """(n, longest, width), zero behind the end of each sequence."""
    values = torch.randn(POINTS, LONGEST, WIDTH, generator=generator())
    return values.masked_fill(behind_the_end()[..., None], 0.0)


def behind_the_end() -> Tensor:
    return torch.arange(LONGEST) >= lengths()[:, None]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, sequence: Tensor) -> Tensor:
        return self.head(self.lstm(sequence)[0][:, -1])


class Packed(Recurrent):
    """Takes padded sequences and their lengths, and packs them itself."""

    def forward(self, sequence: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        packed = nn.utils.rnn.pack_padded_sequence(sequence, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(packed)[1][0][-1])


class Encoder(nn.Module):
    """nn.TransformerEncoder with the mask of the padding, and the mean over what is none."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, sequence: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        hidden = self.encoder(self.into(sequence), src_key_padding_mask=src_key_padding_mask)
        counted = ~src_key_padding_mask[..., None]
        return self.head((hidden * counted).sum(1) / counted.sum(1))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, 6), nn.Linear(3, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(torch.tanh(self.left(a) * self.right(b)))


class Recommender(nn.Module):
    """A rating from a user and the items that were bought before: rows of a table, padded by 0."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(POINTS, 4)
        self.bought = nn.EmbeddingBag(_ITEMS, 4, mode="mean", padding_idx=0)
        self.head = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, user: Tensor, bought: Tensor) -> Tensor:
        return self.head(torch.cat([self.users(user), self.bought(bought)], 1))[:, 0]


class Graph(nn.Module):
    """Two graph convolutions over one graph, which the model keeps; called with the nodes to classify."""

    features: Tensor
    adjacency: Tensor

    def __init__(self) -> None:
        super().__init__()
        edges = (torch.rand(_NODES, _NODES, generator=generator()) < 0.1).float()
        edges = (edges + edges.T + torch.eye(_NODES)).clamp(max=1)
        self.register_buffer("adjacency", edges / edges.sum(1, keepdim=True))
        self.register_buffer("features", torch.randn(_NODES, WIDTH, generator=generator(1)))
        self.first, self.second = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)

    def forward(self, nodes: Tensor) -> Tensor:
        hidden = torch.tanh(self.adjacency @ self.first(self.features))
        return (self.adjacency @ self.second(hidden))[nodes]


class Experts(nn.Module):
    """A mixture of experts: every input goes through the one that the router prefers."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        weight, chosen = self.router(inputs).softmax(1).max(1)
        hidden = inputs.new_zeros(len(inputs), 6)
        for place, expert in enumerate(self.experts):
            rows = (chosen == place).nonzero()[:, 0]
            if len(rows):
                hidden = hidden.index_copy(0, rows, expert(inputs[rows]) * weight[rows, None])
        return self.head(hidden)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, CLASSES))


def rows(_: nn.Module) -> DataLoader:
    return tables(torch.randn(POINTS, WIDTH, generator=generator()), labels())


def rows_of_half(_: nn.Module) -> DataLoader:
    return tables(torch.randn(POINTS, WIDTH, generator=generator()).bfloat16(), labels())


def pairs(_: nn.Module) -> DataLoader:
    draw = generator()
    return tables(torch.randn(POINTS, WIDTH, generator=draw), torch.randn(POINTS, 3, generator=draw), labels())


def ratings(_: nn.Module) -> DataLoader:
    draw = generator()
    bought = torch.randint(0, _ITEMS, (POINTS, 5), generator=draw)
    bought[:, 0] = bought[:, 0].clamp(min=1)  # everybody bought something
    return tables(torch.arange(POINTS), bought, torch.randn(POINTS, generator=draw))


def sequences_alone(_: nn.Module) -> DataLoader:
    return tables(sequences(), labels())


def sequences_with_lengths(_: nn.Module) -> DataLoader:
    return tables(sequences(), lengths(), labels())


def sequences_with_mask(_: nn.Module) -> DataLoader:
    return tables(sequences(), behind_the_end(), labels())


def nodes(_: nn.Module) -> DataLoader:
    """By names: a list of two vectors of integers could be two batches (`test_calls.py`)."""
    examples = [{"nodes": node, "labels": label} for node, label in zip(torch.arange(_NODES), labels(), strict=True)]
    return DataLoader(examples, BATCH)  # type: ignore[arg-type]


ENTRIES = {
    "lstm": Entry(seeded(Recurrent), sequences_alone, per_input),
    "packed-lstm": Entry(seeded(Packed), sequences_with_lengths, per_input),
    "transformer-encoder": Entry(seeded(Encoder), sequences_with_mask, per_input),
    "two-inputs": Entry(seeded(TwoInputs), pairs, per_input),
    "recommender": Entry(seeded(Recommender), ratings, per_input, likelihood="regression"),
    "graph": Entry(seeded(Graph), nodes, per_input),
    "experts": Entry(seeded(Experts), rows, per_input),
    "bfloat16": Entry(seeded(lambda: perceptron().bfloat16()), rows_of_half, per_input, exact=False),
}
