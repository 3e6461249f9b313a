"""The seam between a network's outputs and everything that differentiates it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Likelihood(Protocol):
    """What a loss ℓ does in output space; b points, t outputs, H = ∇²ℓ = L Lᵀ at each point.

    `outputs` is (b, t). `vectors` is (..., b, t): the last two dimensions belong to the outputs,
    leading ones are simply carried along. All four methods are pure functions of tensors, so
    they work in any floating type and on any device. H must not depend on the target, which
    holds for every loss that is the negative logarithm of an exponential family.
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(b,) losses, one a point, differentiable in the outputs; never their mean."""
        ...

    def hessian_product(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        """H u for every vector u."""
        ...

    def factor_product(self, outputs: Tensor, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        """L u, or Lᵀ u, for every vector u."""
        ...

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """Targets drawn from the model's own prediction; `uniform` is (b, t) numbers in (0, 1).

        The gradients of the loss at such targets have H as the mean of their outer products.
        The caller brings the randomness, so that a point gets the same target in whatever batch
        it comes.
        """
        ...
