"""Features of the oracles' networks by calling their parts one after the other, without hooks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from oracles import network, targets_for

HEADS = {"mlp": "2", "conv": "4", "encoder": "head", "tied": "out"}
"""The names of the last linear layers."""


class Tokens(nn.Module):
    """A linear layer on every token, averaged afterwards."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, tokens):
        return self.head(tokens).mean(1)


def last_inputs(kind: str, model: nn.Module, inputs: Tensor) -> Tensor:
    """(b, d) inputs of the last linear layer, in eval mode."""
    training = model.training
    model.eval()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        if kind in ("mlp", "conv"):
            features = model[:-1](inputs)
        elif kind == "encoder":
            features = model.encoder(inputs).mean(1)
        else:
            features = model.again(model.into(model.into(inputs).tanh()).tanh()).tanh()
    model.train(training)
    return features


def head(kind: str, model: nn.Module) -> nn.Linear:
    """The last linear layer."""
    return model.get_submodule(HEADS[kind])


def points_for(kind: str, count: int = 90) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A network, points to fit on, their classes, and 12 queries."""
    model, queries = network(kind)
    shape = queries.shape[1:]
    inputs = torch.randn(count, *shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return model, inputs, targets_for("classification", count), queries
