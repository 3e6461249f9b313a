"""What every formula for a layer's gradients looks like, and what it is made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from slu.gradients.layers.graph import Node

Take: TypeAlias = Callable[[Tensor], Tensor]
"""From a tensor of all rows (R, ...) to those of some samples, (c, n, ...), in the type of the gradients."""


@dataclass(frozen=True)
class Use:
    """A parameter as an operand of a step.

    Attributes:
        node: The step; what it saved of the forward pass are its attributes.
        operand: Which operand the parameter is.
        shape: The operand's shape.
        outputs: The shape of what the step gave.
        turned: Whether the operand is the transposed of the parameter, as in a linear layer.
    """

    node: Node
    operand: int
    shape: tuple[int, ...]
    outputs: tuple[int, ...]
    turned: bool


class Outer(NamedTuple):
    """Gradients that are the product of two tensors, spread over each other, and not yet formed."""

    left: Tensor
    right: Tensor

    def form(self, into: Tensor | None) -> Tensor:
        """The gradients, where a place is given there."""
        return torch.mul(self.left, self.right, out=into)


class Summed(NamedTuple):
    """Gradients that are matrix products, one a sample, and not yet formed: (c, g·o, n) by (c, n, i)."""

    left: Tensor
    right: Tensor
    vectors: int

    def form(self, into: Tensor | None) -> Tensor:
        """The gradients (c, g, o, i), where a place of one block a sample is given there."""
        c, rows, i = len(self.left), self.left.shape[1], self.right.shape[2]
        if into is None or not (self.vectors == 1 or into.is_contiguous()):
            return torch.bmm(self.left, self.right).view(c, self.vectors, -1, i)
        torch.bmm(self.left, self.right, out=into.view(c, rows, i))
        return into


class Formula(Protocol):
    """Gradients of single samples in one operand of a step, from gradients in what the step gave."""

    def rows(self, cotangent: Tensor) -> Tensor:
        """A gradient in the step's result, rearranged so that its rows, each of one sample, come first: (R, ...)."""
        ...

    def gradient(self, cotangents: list[Tensor], take: Take) -> Tensor | Outer | Summed:
        """(c, g, ...) gradients in the operand of c samples, from g tensors (c, n, ...) of their rows."""
        ...


@runtime_checkable
class Splitting(Formula, Protocol):
    """A formula that can be had for a few rows of the parameter at a time, at their share of the cost."""

    def part(self, rows: slice) -> Formula:
        """The formula for some rows of the parameter's first dimension."""
        ...


Rule: TypeAlias = Callable[[Use], Formula | None]
"""The formula for a parameter's use in a kind of step; None where there is none for it."""
