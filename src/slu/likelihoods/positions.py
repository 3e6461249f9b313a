"""Outputs at several positions of an input, tokens or pixels: the loss of an input is the sum over its positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class PerPosition:
    """A likelihood of the outputs at P positions of every input, as one likelihood of its P·C outputs.

    ℓ = Σ_τ ℓ_τ over the positions that count, so H = diag(H_τ) and L = diag(L_τ) by positions, and the curvature of an
    input is Σ_τ J_τᵀ H_τ J_τ: what it would be if every position were a point of its own.

    Args:
        likelihood: Of the C outputs at one position.
        outputs: C.
        counted: (b, P), true where a position counts.
    """

    likelihood: Any
    outputs: int
    counted: Tensor

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(b,) summed over the positions that count; targets are one per position, or C, in their order."""
        rows = self._rows(outputs)
        losses = self.likelihood.loss(rows, self._targets(targets, rows)).view(len(outputs), -1)
        return losses.masked_fill(~self.counted, 0.0).sum(1)

    def hessian_product(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        """H u for every vector u (..., b, P·C)."""
        product = self.likelihood.hessian_product(self._rows(outputs), self._rows_of_vectors(vectors))
        return self._masked(product, vectors)

    def factor_product(self, outputs: Tensor, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        """L u, or Lᵀ u, for every vector u (..., b, P·C)."""
        rows, vectors_of_rows = self._rows(outputs), self._rows_of_vectors(vectors)
        return self._masked(self.likelihood.factor_product(rows, vectors_of_rows, transpose=transpose), vectors)

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """(b, P) targets, or (b, P, C), drawn at every position."""
        drawn = self.likelihood.sample(self._rows(outputs), self._rows(uniform))
        return drawn.view(len(outputs), -1, *drawn.shape[1:])

    def _rows(self, outputs: Tensor) -> Tensor:
        return outputs.reshape(-1, self.outputs)

    def _rows_of_vectors(self, vectors: Tensor) -> Tensor:
        return vectors.reshape(*vectors.shape[:-2], -1, self.outputs)

    def _masked(self, product: Tensor, like: Tensor) -> Tensor:
        return product.reshape(like.shape).masked_fill(~self.counted.repeat_interleave(self.outputs, 1), 0.0)

    def _targets(self, targets: Tensor, rows: Tensor) -> Tensor:
        """One target per row; where a position does not count, any that the likelihood takes."""
        flat = targets.reshape(len(rows), -1)
        flat = flat[:, 0] if flat.shape[1] == 1 else flat
        return flat.masked_fill(~self.counted.reshape(-1, *[1] * (flat.dim() - 1)), 0)
