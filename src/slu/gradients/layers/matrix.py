"""Matrices: linear layers, whatever stands before the last dimension of their inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slu.gradients.layers.elementwise import Spread
from slu.gradients.layers.formula import Formula, Outer, Summed, Take, Use


@dataclass(frozen=True)
class Matrix:
    """Y = scale · A W: the gradient of a sample is Σ aᵀ ȳ over its rows.

    Attributes:
        inputs: A, all rows.
        scale: A number besides.
        turned: Whether the parameter is the transposed of W.
        columns: Those of Y whose weights are asked for; None for all.

    Cost: n·i·o products a row of the Jacobian for n rows a sample; one matrix product for all g
    vectors, so the inputs are read once.
    """

    inputs: Tensor
    scale: float
    turned: bool
    columns: slice | None = None

    def part(self, rows: slice) -> Matrix:
        return replace(self, columns=rows) if self.turned else replace(self, inputs=self.inputs[..., rows])

    def rows(self, cotangent: Tensor) -> Tensor:
        return cotangent if self.columns is None else cotangent[..., self.columns]

    def gradient(self, cotangents: list[Tensor], take: Take) -> Tensor | Outer | Summed:
        inputs = take(self.inputs)
        (c, n, o), i, g = cotangents[0].shape, inputs.shape[-1], len(cotangents)
        stacked = torch.stack(cotangents, 2)  # (c, n, g, o)
        stacked = stacked if self.scale == 1 else stacked * self.scale
        if n == 1:
            left, right = stacked.view(c, g, o), inputs.reshape(c, 1, i)
            if self.turned:
                return Outer(left[..., None], right[:, :, None])
            return Outer(right[..., None], left[:, :, None])
        if self.turned:
            return Summed(stacked.view(c, n, g * o).transpose(1, 2), inputs, g)
        return torch.matmul(inputs.transpose(1, 2)[:, None], stacked.transpose(1, 2))


def product(use: Use) -> Formula | None:
    """`mm`: the inputs, the matrix."""
    return Matrix(use.node._saved_self, 1.0, use.turned) if use.operand == 1 else None


def affine(use: Use) -> Formula | None:
    """`addmm`: the bias, the inputs, the matrix."""
    if use.operand == 0:
        return Spread.over(use.shape, use.outputs, scale=float(use.node._saved_beta))
    if use.operand == 2:
        return Matrix(use.node._saved_mat1, float(use.node._saved_alpha), use.turned)
    return None
