"""What a formula for a layer's per-example gradients is, and those of linear layers, embeddings and broadcasting.

A formula belongs to a step of autograd's graph and to one of its operands. A rule (a function named after the
operation) makes it from what the step saved of the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias, TypeGuard

import torch
from torch import Tensor

from slu.gradients.layers.graph import Node

Take: TypeAlias = Callable[[Tensor], Tensor]
"""From a tensor of all rows (R, ...) to those of some examples, (c, n, ...), in the type of the gradients."""


@dataclass(frozen=True)
class Use:
    """A parameter as an operand of a step.

    Attributes:
        node: The step; what it saved of the forward pass are its attributes.
        operand: Which operand the parameter is.
        shape: The operand's shape.
        outputs: The shape of the step's result.
        transposed: Whether the operand is the transpose of the parameter, as in a linear layer.
    """

    node: Node
    operand: int
    shape: tuple[int, ...]
    outputs: tuple[int, ...]
    transposed: bool


class Outer(NamedTuple):
    """Gradients that are the product of two tensors, broadcast, and not yet formed."""

    left: Tensor
    right: Tensor

    def form(self, into: Tensor | None) -> Tensor:
        """The gradients, written to `into` where it is given."""
        return torch.mul(self.left, self.right, out=into)


class Summed(NamedTuple):
    """Gradients that are matrix products, one per example, and not yet formed: (c, g·o, n) by (c, n, i)."""

    left: Tensor
    right: Tensor
    vectors: int

    def form(self, into: Tensor | None) -> Tensor:
        """The gradients (c, g, o, i), written to `into` where it has one block per example."""
        c, rows, i = len(self.left), self.left.shape[1], self.right.shape[2]
        if into is None or not (self.vectors == 1 or into.is_contiguous()):
            return torch.bmm(self.left, self.right).view(c, self.vectors, -1, i)
        torch.bmm(self.left, self.right, out=into.view(c, rows, i))
        return into


class Formula(Protocol):
    """Per-example gradients in one operand of a step, from gradients in the step's result."""

    def rows(self, cotangent: Tensor) -> Tensor:
        """A gradient in the step's result, rearranged so that its rows, each of one example, come first: (R, ...)."""
        ...

    def gradient(self, cotangents: list[Tensor], take: Take) -> Tensor | Outer | Summed:
        """(c, g, ...) gradients in the operand of c examples, from g tensors (c, n, ...) of their rows."""
        ...


class Splitting(Formula, Protocol):
    """A formula that can be evaluated for a few rows of the parameter at a time, at their share of the cost."""

    def part(self, rows: slice) -> Formula:
        """The formula for some rows of the parameter's first dimension."""
        ...


class Factoring(Formula, Protocol):
    """A formula whose gradients are sums of outer products over positions, of which the factors are at hand."""

    def positions(self, rows: int) -> int | None:
        """T, of an example with so many rows; None where there are no factors after all."""
        ...

    def factors(self, cotangents: list[Tensor], take: Take) -> tuple[Tensor, Tensor]:
        """Left and right as of `slu.gradients.chunks.Factors`, from g tensors (c, n, ...) of the examples' rows."""
        ...


def can_split(formula: Formula) -> TypeGuard[Splitting]:
    """Not isinstance, which takes as long for a protocol as the backward pass of a small layer."""
    return hasattr(formula, "part")


def has_factors(formula: Formula) -> TypeGuard[Factoring]:
    """The same for factors."""
    return hasattr(formula, "factors")


Rule: TypeAlias = Callable[[Use], Formula | None]
"""The formula for a parameter's use in a kind of step; None where there is none for it."""


@dataclass(frozen=True)
class Matrix:
    """Y = scale · A W: the gradient of an example is Σ aᵀ ȳ over its rows.

    Attributes:
        inputs: A, all rows.
        scale: A number besides.
        transposed: Whether the parameter is the transpose of W.
        columns: Those of Y whose weights are asked for; None for all.

    Cost: n·i·o products per row of the Jacobian for n rows per example; one matrix product for all g
    vectors, so the inputs are read once.
    """

    inputs: Tensor
    scale: float
    transposed: bool
    columns: slice | None = None

    def part(self, rows: slice) -> Matrix:
        return replace(self, columns=rows) if self.transposed else replace(self, inputs=self.inputs[..., rows])

    def rows(self, cotangent: Tensor) -> Tensor:
        return cotangent if self.columns is None else cotangent[..., self.columns]

    def positions(self, rows: int) -> int:
        return rows

    def factors(self, cotangents: list[Tensor], take: Take) -> tuple[Tensor, Tensor]:
        inputs, stacked = take(self.inputs)[:, None], torch.stack(cotangents, 1)
        stacked = stacked if self.scale == 1 else stacked * self.scale
        return (stacked, inputs) if self.transposed else (inputs, stacked)

    def gradient(self, cotangents: list[Tensor], take: Take) -> Tensor | Outer | Summed:
        inputs = take(self.inputs)
        (c, n, o), i, g = cotangents[0].shape, inputs.shape[-1], len(cotangents)
        stacked = torch.stack(cotangents, 2)  # (c, n, g, o)
        stacked = stacked if self.scale == 1 else stacked * self.scale
        if n == 1:
            left, right = stacked.view(c, g, o), inputs.reshape(c, 1, i)
            if self.transposed:
                return Outer(left[..., None], right[:, :, None])
            return Outer(right[..., None], left[:, :, None])
        if self.transposed:
            return Summed(stacked.view(c, n, g * o).transpose(1, 2), inputs, g)
        return torch.matmul(inputs.transpose(1, 2)[:, None], stacked.transpose(1, 2))


def mm(use: Use) -> Formula | None:
    """`mm`: the inputs, the matrix."""
    return Matrix(use.node._saved_self, 1.0, use.transposed) if use.operand == 1 else None


def addmm(use: Use) -> Formula | None:
    """`addmm`: the bias, the inputs, the matrix."""
    if use.operand == 0:
        return Broadcast.over(use.shape, use.outputs, scale=float(use.node._saved_beta))
    if use.operand == 2:
        return Matrix(use.node._saved_mat1, float(use.node._saved_alpha), use.transposed)
    return None


@dataclass(frozen=True)
class Broadcast:
    """Z = v + …, or v · X: the gradient of an example is Σ z̄, or Σ z̄ · x, over its rows.

    For biases, scales and position embeddings. The rows are all dimensions of Z along which v is repeated.

    Attributes:
        repeated, kept: Dimensions of Z along which v is repeated, and the others.
        shape: v's.
        factor: X, or None.
        scale: A number besides.
    """

    repeated: tuple[int, ...]
    kept: tuple[int, ...]
    shape: tuple[int, ...]
    factor: Tensor | None = None
    scale: float = 1.0

    @classmethod
    def over(
        cls, shape: tuple[int, ...], outputs: tuple[int, ...], *, factor: Tensor | None = None, scale: float = 1.0
    ) -> Broadcast:
        """From the shapes of v and of Z."""
        missing = len(outputs) - len(shape)
        kept = tuple(place for place in range(len(outputs)) if place >= missing and shape[place - missing] != 1)
        repeated = tuple(place for place in range(len(outputs)) if place not in kept)
        factor = None if factor is None else factor.expand(outputs)
        return cls(repeated, kept, shape, factor, scale)

    def rows(self, cotangent: Tensor) -> Tensor:
        permuted = cotangent.permute(*self.repeated, *self.kept)
        return permuted.flatten(0, len(self.repeated) - 1) if self.repeated else permuted[None]

    def gradient(self, cotangents: list[Tensor], take: Take) -> Tensor:
        factor = None if self.factor is None else take(self.rows(self.factor))
        sums = torch.stack([(each if factor is None else each * factor).sum(1) for each in cotangents], 1)
        sums = sums if self.scale == 1 else sums * self.scale
        return sums.view(*sums.shape[:2], *self.shape)


def add(use: Use) -> Formula:
    """`add`: of which the second operand may be scaled."""
    return Broadcast.over(use.shape, use.outputs, scale=float(use.node._saved_alpha) if use.operand else 1.0)


def sub(use: Use) -> Formula:
    """`sub`."""
    return Broadcast.over(use.shape, use.outputs, scale=-float(use.node._saved_alpha) if use.operand else 1.0)


def mul(use: Use) -> Formula:
    """`mul`."""
    factor = use.node._saved_self if use.operand else use.node._saved_other
    return Broadcast.over(use.shape, use.outputs, factor=factor)


def expand(use: Use) -> Formula:
    """`expand`: a token that every example begins with."""
    return Broadcast.over(use.shape, use.outputs)


def prelu(use: Use) -> Formula | None:
    """`prelu`: inputs, slopes below zero."""
    if use.operand != 1:
        return None
    return Broadcast.over(use.shape, use.outputs, factor=use.node._saved_self.clamp(max=0))


@dataclass(frozen=True)
class Embedding:
    """The gradient of an example: the sum of the gradients at the positions of each word, zero for other words.

    Attributes:
        indices: (R,) which words.
        padding: A word that has no gradient, or -1.
        shape: Of the table.
        words: Which of them are asked for.
    """

    indices: Tensor
    padding: int
    shape: tuple[int, ...]
    words: slice

    def part(self, rows: slice) -> Embedding:
        return replace(self, words=rows)

    def rows(self, cotangent: Tensor) -> Tensor:
        return cotangent.reshape(-1, self.shape[1])

    def positions(self, rows: int) -> int:
        return rows

    def factors(self, cotangents: list[Tensor], take: Take) -> tuple[Tensor, Tensor]:
        words = take(self.indices)
        stacked = torch.stack(cotangents, 1)
        if self.padding >= 0:
            stacked = stacked.masked_fill((words == self.padding)[:, None, :, None], 0.0)
        return words[:, None], stacked

    def gradient(self, cotangents: list[Tensor], take: Take) -> Tensor:
        words = take(self.indices)
        (count, _, width), vectors = cotangents[0].shape, len(cotangents)
        asked = self.words.stop - self.words.start
        gradients = cotangents[0].new_zeros(count, vectors, asked, width)
        flat = gradients.view(-1, width)
        kept = ((words >= self.words.start) & (words < self.words.stop) & (words != self.padding)).reshape(-1)
        first = torch.arange(count, device=words.device)[:, None] * (vectors * asked)
        where = (words - self.words.start + first).reshape(-1)[kept]
        for place, each in enumerate(cotangents):
            flat.index_add_(0, where + place * asked, each.reshape(-1, width)[kept])
        return gradients


def embedding(use: Use) -> Formula | None:
    """`embedding`; scaled by how often a word is in the batch, an example has no gradient of its own."""
    node = use.node
    if node._saved_scale_grad_by_freq:
        return None
    padding = int(node._saved_padding_idx)
    # An unsigned number where there is no such word.
    padding = padding if 0 <= padding < use.shape[0] else -1
    return Embedding(node._saved_indices.reshape(-1), padding, use.shape, slice(0, use.shape[0]))
