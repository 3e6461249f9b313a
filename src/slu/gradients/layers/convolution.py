"""Convolutions in one to three dimensions, with strides, groups, dilation and padding."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from slu.gradients.layers.formula import Formula, Take, Use
from slu.gradients.layers.norms import Channels
from slu.gradients.rows import PIECE

_WIDE = 256
"""Output channels times vectors from which a matrix product over unfolded inputs is the faster way."""


@dataclass(frozen=True)
class Kernel:
    """The gradient of a sample is the convolution of its inputs with its output gradients.

    All samples and vectors are one grouped convolution, in which a sample is a group and vectors
    are further output channels: nothing is unfolded. With many output channels, and in float64,
    for which the CPU has no fast convolution, a product with the unfolded inputs is faster. Kernels of one
    position are a product without unfolding.

    Cost: as the gradient of the whole batch in the kernel, for each vector. About two million numbers of
    unfolded inputs at a time, or one sample's.
    """

    inputs: Tensor
    shape: tuple[int, ...]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    def rows(self, cotangent: Tensor) -> Tensor:
        return cotangent

    def gradient(self, cotangents: list[Tensor], take: Take) -> Tensor:
        inputs = take(self.inputs)  # (c, n, C, *positions)
        if self._pointwise:
            return self._product(self._thinned(inputs), cotangents)
        if self._unfolds(inputs, len(cotangents)):
            return self._in_parts(inputs, cotangents)
        return self._grouped(inputs, cotangents)

    def _in_parts(self, inputs: Tensor, cotangents: list[Tensor]) -> Tensor:
        """A few samples at a time: unfolded, inputs are as many times as long as the kernel has positions."""
        each = prod((*inputs.shape[1:3], *self.shape[2:], *cotangents[0].shape[3:]))  # n·C·k·P
        most = max(1, PIECE // max(1, each))
        if len(inputs) <= most:
            return self._product(self._unfolded(inputs), cotangents)
        found = inputs.new_empty(len(inputs), len(cotangents), *self.shape)
        for start in range(0, len(inputs), most):
            part = slice(start, start + most)
            found[part] = self._product(self._unfolded(inputs[part]), [each[part] for each in cotangents])
        return found

    @property
    def _pointwise(self) -> bool:
        return self.groups == 1 and prod(self.shape[2:]) == 1 and not any(self.padding)

    def _unfolds(self, inputs: Tensor, vectors: int) -> bool:
        if self.groups > 1 or len(self.stride) > 2:
            return False
        return inputs.dtype == torch.float64 or inputs.is_cuda or self.shape[0] * vectors >= _WIDE

    def _thinned(self, inputs: Tensor) -> Tensor:
        """(c, n, C, P): a kernel of one position sees every stride-th position."""
        thinned = inputs[(..., *(slice(None, None, step) for step in self.stride))]
        return thinned.flatten(3)

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
            found = torch.bmm(left, seen[:, 0].transpose(1, 2))
        else:
            stacked = torch.stack([each.flatten(3).transpose(1, 2) for each in cotangents], 1)  # (c, g, o, n, P)
            left = stacked.view(c, g * o, n * positions)
            found = torch.bmm(left, seen.transpose(1, 2).flatten(2).transpose(1, 2))
        return found.view(c, g, *self.shape)

    def _grouped(self, inputs: Tensor, cotangents: list[Tensor]) -> Tensor:
        c, g, o = len(inputs), len(cotangents), self.shape[0]
        images = inputs.transpose(0, 1).flatten(1, 2)  # (n, c·C, *positions)
        # Channels in the order sample, group, vector, channel of the group.
        split = [each.transpose(0, 1).unflatten(2, (self.groups, -1)) for each in cotangents]
        stacked = torch.stack(split, 3).flatten(1, 4)
        shape = (c * g * o, *self.shape[1:])
        found = torch.ops.aten.convolution_backward(
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
            return found.view(c, g, *self.shape)
        found = found.view(c, self.groups, g, o // self.groups, *self.shape[1:])
        return found.transpose(1, 2).reshape(c, g, *self.shape)


def convolution(use: Use) -> Formula | None:
    """`convolution`: inputs, kernel, bias. Transposed ones have no formula here."""
    node = use.node
    if use.operand == 2:
        return Channels()
    if use.operand != 1 or node._saved_transposed:
        return None
    settings = (node._saved_stride, node._saved_padding, node._saved_dilation)
    stride, padding, dilation = (list(each) for each in settings)
    return Kernel(node._saved_input, use.shape, stride, padding, dilation, node._saved_groups)
