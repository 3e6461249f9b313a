"""Scales and shifts of normalizing layers, and biases of convolutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from slu.gradients.layers.formula import Formula, Take, Use


@dataclass(frozen=True)
class Channels:
    """A number a channel, of (N, C, ...): Σ ȳ, or Σ ȳ · x̂, over positions and the rows of a sample.

    Attributes:
        normalized: Gives x̂ of some samples, (c, n, C, ...); None for a shift.
    """

    normalized: Callable[[Take], Tensor] | None = None

    def rows(self, cotangent: Tensor) -> Tensor:
        return cotangent

    def gradient(self, cotangents: list[Tensor], take: Take) -> Tensor:
        inputs = None if self.normalized is None else self.normalized(take)
        products = (each if inputs is None else each * inputs for each in cotangents)
        return torch.stack([each.flatten(3).sum((1, 3)) if each.dim() > 3 else each.sum(1) for each in products], 1)


@dataclass(frozen=True)
class Features:
    """A number a feature of the last dimensions, of (..., *F): Σ ȳ, or Σ ȳ · x̂, over the rows of a sample.

    Attributes:
        shape: F.
        normalized: Gives x̂ of some samples, (c, n, features); None for a shift.
    """

    shape: tuple[int, ...]
    normalized: Callable[[Take], Tensor] | None = None

    def rows(self, cotangent: Tensor) -> Tensor:
        return cotangent.reshape(-1, prod(self.shape))

    def gradient(self, cotangents: list[Tensor], take: Take) -> Tensor:
        inputs = None if self.normalized is None else self.normalized(take)
        found = torch.stack([(each if inputs is None else each * inputs).sum(1) for each in cotangents], 1)
        return found.view(*found.shape[:2], *self.shape)


def layer_norm(use: Use) -> Formula | None:
    """`native_layer_norm`: inputs, scale, shift."""
    if use.operand == 2:
        return Features(use.shape)
    if use.operand != 1:
        return None
    node = use.node
    rows = node._saved_input.reshape(-1, prod(use.shape))
    mean, inverse = (each.reshape(-1, 1) for each in (node._saved_result1, node._saved_result2))
    return Features(use.shape, lambda take: (take(rows) - take(mean)) * take(inverse))


def group_norm(use: Use) -> Formula | None:
    """`native_group_norm`: inputs, scale, shift."""
    if use.operand == 2:
        return Channels()
    if use.operand != 1:
        return None
    node = use.node
    inputs, mean, inverse, groups = node._saved_input, node._saved_result1, node._saved_result2, node._saved_group

    def normalized(take: Take) -> Tensor:
        taken = take(inputs)
        grouped = taken.reshape(*taken.shape[:2], groups, -1)
        return ((grouped - take(mean)[..., None]) * take(inverse)[..., None]).view(taken.shape)

    return Channels(normalized)


def batch_norm(use: Use) -> Formula | None:
    """`native_batch_norm` by running statistics: inputs, scale, shift. By those of the batch there is no sample."""
    node = use.node
    if node._saved_training or use.operand == 0:
        return None
    if use.operand == 2:
        return Channels()
    inputs, mean, variance, epsilon = (
        node._saved_input, node._saved_running_mean, node._saved_running_var, node._saved_eps
    )  # fmt: skip

    def normalized(take: Take) -> Tensor:
        taken = take(inputs)
        shape = (-1, *(1,) * (taken.dim() - 3))
        inverse = (variance.to(taken.dtype) + epsilon).rsqrt()
        return (taken - mean.to(taken.dtype).view(shape)) * inverse.view(shape)

    return Channels(normalized)
