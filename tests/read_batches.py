"""Models that batches are read for, and how what was read is compared."""

import torch
from torch import nn

from slu.data import BatchReader, Signature

X, Y = torch.arange(8.0).reshape(4, 2), torch.arange(4)


class One(nn.Module):
    def forward(self, x):
        return x


class Masked(nn.Module):
    def forward(self, x, mask=None):
        return x if mask is None else x * mask


def reader(model: nn.Module | None, **settings) -> BatchReader:
    return BatchReader(None if model is None else Signature.of(model), torch.float32, **settings)


def same(actual, expected) -> bool:
    """But for the names that inputs given by position have."""
    return str(plain(actual)) == str(plain(expected))


def plain(tree):
    return tuple(map(plain, tree)) if isinstance(tree, tuple) else tree
