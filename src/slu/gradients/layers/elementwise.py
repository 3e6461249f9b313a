"""Parameters that are spread over what they are added to or multiplied with: biases, scales, position embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slu.gradients.layers.formula import Formula, Take, Use


@dataclass(frozen=True)
class Spread:
    """Z = v + …, or v · X: the gradient of a sample is Σ z̄, or Σ z̄ · x, over its rows.

    The rows are all dimensions of Z along which v is repeated.

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
    ) -> Spread:
        """From the shapes of v and of Z."""
        missing = len(outputs) - len(shape)
        kept = tuple(place for place in range(len(outputs)) if place >= missing and shape[place - missing] != 1)
        repeated = tuple(place for place in range(len(outputs)) if place not in kept)
        factor = None if factor is None else factor.expand(outputs)
        return cls(repeated, kept, shape, factor, scale)

    def rows(self, cotangent: Tensor) -> Tensor:
        turned = cotangent.permute(*self.repeated, *self.kept)
        return turned.flatten(0, len(self.repeated) - 1) if self.repeated else turned[None]

    def gradient(self, cotangents: list[Tensor], take: Take) -> Tensor:
        factor = None if self.factor is None else take(self.rows(self.factor))
        sums = [(each if factor is None else each * factor).sum(1) for each in cotangents]
        found = torch.stack(sums, 1)
        found = found if self.scale == 1 else found * self.scale
        return found.view(*found.shape[:2], *self.shape)


def added(use: Use) -> Formula:
    """`add`: of which the second operand may be scaled."""
    return Spread.over(use.shape, use.outputs, scale=float(use.node._saved_alpha) if use.operand else 1.0)


def subtracted(use: Use) -> Formula:
    """`sub`."""
    return Spread.over(use.shape, use.outputs, scale=-float(use.node._saved_alpha) if use.operand else 1.0)


def multiplied(use: Use) -> Formula:
    """`mul`."""
    factor = use.node._saved_self if use.operand else use.node._saved_other
    return Spread.over(use.shape, use.outputs, factor=factor)


def expanded(use: Use) -> Formula:
    """`expand`: a token that every sample begins with."""
    return Spread.over(use.shape, use.outputs)


def bent(use: Use) -> Formula | None:
    """`prelu`: inputs, slopes below zero."""
    if use.operand != 1:
        return None
    return Spread.over(use.shape, use.outputs, factor=use.node._saved_self.clamp(max=0))
