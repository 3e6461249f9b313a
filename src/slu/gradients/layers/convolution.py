"""Convolutions in one to three dimensions, and the scales and shifts of normalizing layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from slu.gradients.chunks import PIECE_NUMBERS, examples_within
from slu.gradients.layers.formulas import Formula, Take, Use

WIDE = 256
"""Output channels times vectors from which a matrix product over unfolded inputs is the faster way."""


@dataclass(frozen=True)
class Kernel:
    """The gradient of an example is the convolution of its inputs with its output gradients.

    All examples and vectors are one grouped convolution, in which an example is a group and vectors
    are further output channels: nothing is unfolded. With many output channels, and in float64,
    for which the CPU has no fast convolution, a product with the unfolded inputs is faster. Kernels of one
    position are a product without unfolding.

    Attributes:
        inputs: All of the batch.
        shape: The kernel's.
        stride, padding, dilation, groups: The convolution's.
        places: Positions of its result.

    Cost: as the gradient of the whole batch in the kernel, for each vector. About two million numbers of
    unfolded inputs at a time, or one example's.
    """

    inputs: Tensor
    shape: tuple[int, ...]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int
    places: int

    def rows(self, cotangent: Tensor) -> Tensor:
        return cotangent

    def positions(self, rows: int) -> int | None:
        return rows * self.places if self.groups == 1 and len(self.stride) <= 2 else None

    def factors(self, cotangents: list[Tensor], take: Take) -> tuple[Tensor, Tensor]:
        inputs = take(self.inputs)
        seen = self._thinned(inputs) if self._pointwise else self._unfolded(inputs)  # (c, n, C·k, P)
        left = torch.stack([each.flatten(3).transpose(2, 3).flatten(1, 2) for each in cotangents], 1)
        return left, seen.transpose(2, 3).flatten(1, 2)[:, None]

    def gradient(self, cotangents: list[Tensor], take: Take) -> Tensor:
        inputs = take(self.inputs)  # (c, n, C, *positions)
        if self._pointwise:
            return self._product(self._thinned(inputs), cotangents)
        if self._unfolds(inputs, len(cotangents)):
            return self._in_parts(inputs, cotangents)
        return self._grouped(inputs, cotangents)

    def _in_parts(self, inputs: Tensor, cotangents: list[Tensor]) -> Tensor:
        """A few examples at a time: unfolded, inputs are as many times as long as the kernel has positions."""
        each = prod((*inputs.shape[1:3], *self.shape[2:], *cotangents[0].shape[3:]))  # n·C·k·P
        most = examples_within(PIECE_NUMBERS, each)
        if len(inputs) <= most:
            return self._product(self._unfolded(inputs), cotangents)
        gradients = inputs.new_empty(len(inputs), len(cotangents), *self.shape)
        for start in range(0, len(inputs), most):
            part = slice(start, start + most)
            gradients[part] = self._product(self._unfolded(inputs[part]), [each[part] for each in cotangents])
        return gradients

    @property
    def _pointwise(self) -> bool:
        return self.groups == 1 and prod(self.shape[2:]) == 1 and not any(self.padding)

    def _unfolds(self, inputs: Tensor, vectors: int) -> bool:
        if self.groups > 1 or len(self.stride) > 2:
            return False
        return inputs.dtype == torch.float64 or inputs.is_cuda or self.shape[0] * vectors >= WIDE

    def _thinned(self, inputs: Tensor) -> Tensor:
        """(c, n, C, P): a kernel of one position sees every stride-th position."""
        return inputs[(..., *(slice(None, None, step) for step in self.stride))].flatten(3)

    def _unfolded(self, inputs: Tensor) -> Tensor:
        """(c, n, C·k, P): what the kernel sees at every position."""
        flat = inputs.flatten(0, 1)
        flat = flat.unsqueeze(2) if len(self.shape) == 3 else flat
        size, stride, padding, dilation = (
            (given[0], given[1]) if len(given) == 2 else (fill, given[0])
            for fill, given in ((1, self.shape[2:]), (1, self.stride), (0, self.padding), (1, self.dilation))
        )
        seen = F.unfold(flat, size, dilation=dilation, padding=padding, stride=stride)
        return seen.unflatten(0, inputs.shape[:2])

    def _product(self, seen: Tensor, cotangents: list[Tensor]) -> Tensor:
        c, n, _, positions = seen.shape
        g, o = len(cotangents), self.shape[0]
        if n == 1:
            left = torch.stack([each.reshape(c, o, positions) for each in cotangents], 1).view(c, g * o, positions)
            gradients = torch.bmm(left, seen[:, 0].transpose(1, 2))
        else:
            stacked = torch.stack([each.flatten(3).transpose(1, 2) for each in cotangents], 1)  # (c, g, o, n, P)
            left = stacked.view(c, g * o, n * positions)
            gradients = torch.bmm(left, seen.transpose(1, 2).flatten(2).transpose(1, 2))
        return gradients.view(c, g, *self.shape)

    def _grouped(self, inputs: Tensor, cotangents: list[Tensor]) -> Tensor:
        c, g, o = len(inputs), len(cotangents), self.shape[0]
        images = inputs.transpose(0, 1).flatten(1, 2)  # (n, c·C, *positions)
        # Channels in the order example, group, vector, channel of the group.
        split = [each.transpose(0, 1).unflatten(2, (self.groups, -1)) for each in cotangents]
        stacked = torch.stack(split, 3).flatten(1, 4)
        shape = (c * g * o, *self.shape[1:])
        gradients = torch.ops.aten.convolution_backward(
            stacked,
            images,
            images.new_empty(1).expand(shape),
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0] * len(self.stride),
            c * self.groups,
            [False, True, False],
        )[1]
        if self.groups == 1:
            return gradients.view(c, g, *self.shape)
        gradients = gradients.view(c, self.groups, g, o // self.groups, *self.shape[1:])
        return gradients.transpose(1, 2).reshape(c, g, *self.shape)


def convolution(use: Use) -> Formula | None:
    """`convolution`: inputs, kernel, bias. Transposed ones have no formula here."""
    node = use.node
    if use.operand == 2:
        return Affine()
    if use.operand != 1 or node._saved_transposed:
        return None
    settings = (node._saved_stride, node._saved_padding, node._saved_dilation)
    stride, padding, dilation = (list(each) for each in settings)
    places = prod(use.outputs[2:])
    return Kernel(node._saved_input, use.shape, stride, padding, dilation, node._saved_groups, places)


@dataclass(frozen=True)
class Affine:
    """A scale or a shift: Σ ȳ · x̂, or Σ ȳ, over the rows of an example and over positions.

    Attributes:
        normalized: Gives x̂ of some examples, (c, n, C, ...) or (c, n, features); None for a shift.
        features: The parameter's shape where it has a number per feature of the last dimensions; None where it has
            one per channel of (N, C, ...).
    """

    normalized: Callable[[Take], Tensor] | None = None
    features: tuple[int, ...] | None = None

    def rows(self, cotangent: Tensor) -> Tensor:
        return cotangent if self.features is None else cotangent.reshape(-1, prod(self.features))

    def gradient(self, cotangents: list[Tensor], take: Take) -> Tensor:
        inputs = None if self.normalized is None else self.normalized(take)
        products = (each if inputs is None else each * inputs for each in cotangents)
        sums = torch.stack([each.flatten(3).sum((1, 3)) if each.dim() > 3 else each.sum(1) for each in products], 1)
        return sums if self.features is None else sums.view(*sums.shape[:2], *self.features)


def layer_norm(use: Use) -> Formula | None:
    """`native_layer_norm`: inputs, scale, shift."""
    if use.operand == 2:
        return Affine(features=use.shape)
    if use.operand != 1:
        return None
    node = use.node
    inputs, mean, inverse = node._saved_input, node._saved_result1, node._saved_result2

    def normalized(take: Take) -> Tensor:
        # Only now: of inputs that were permuted these rows are a copy, which would be held of every norm.
        rows = inputs.reshape(-1, prod(use.shape))
        return (take(rows) - take(mean.reshape(-1, 1))) * take(inverse.reshape(-1, 1))

    return Affine(normalized, use.shape)


def group_norm(use: Use) -> Formula | None:
    """`native_group_norm`: inputs, scale, shift."""
    if use.operand == 2:
        return Affine()
    if use.operand != 1:
        return None
    node = use.node
    inputs, mean, inverse, groups = node._saved_input, node._saved_result1, node._saved_result2, node._saved_group

    def normalized(take: Take) -> Tensor:
        taken = take(inputs)
        grouped = taken.reshape(*taken.shape[:2], groups, -1)
        return ((grouped - take(mean)[..., None]) * take(inverse)[..., None]).view(taken.shape)

    return Affine(normalized)


def batch_norm(use: Use) -> Formula | None:
    """`native_batch_norm` by running statistics: inputs, scale, shift. By those of the batch no example has its own."""
    node = use.node
    if node._saved_training or use.operand == 0:
        return None
    if use.operand == 2:
        return Affine()
    inputs, mean, variance, epsilon = (
        node._saved_input, node._saved_running_mean, node._saved_running_var, node._saved_eps
    )  # fmt: skip

    def normalized(take: Take) -> Tensor:
        taken = take(inputs)
        shape = (-1, *(1,) * (taken.dim() - 3))
        inverse = (variance.to(taken.dtype) + epsilon).rsqrt()
        return (taken - mean.to(taken.dtype).view(shape)) * inverse.view(shape)

    return Affine(normalized)
