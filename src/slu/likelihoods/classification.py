"""Softmax over t classes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from slu.errors import DataError


class Classification:
    """Cross-entropy of a softmax: H = diag(π) - π πᵀ with π = softmax(outputs).

    The factor is L = (I - π 1ᵀ) diag(√π), for which L Lᵀ = H; its columns are the scaled
    gradients √π_j (e_j - π) of the loss at each label j.

    Numerics:
        A confident network has 1 - π_i far below the rounding of π_i, and the plain formulas
        subtract two nearly equal numbers there. Here every product is written with the sum over
        the *other* classes instead, which keeps full relative accuracy down to underflow.
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _check(outputs)
        if targets.shape != outputs.shape[:1] or targets.is_floating_point():
            raise DataError(
                f"classification needs one class index a point: targets of shape ({len(outputs)},) and an integer "
                f"type, got {tuple(targets.shape)} {targets.dtype}"
            )
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= outputs.shape[1]:
            raise DataError(f"class indices must lie in 0 to {outputs.shape[1] - 1}, got {low} to {high}")
        return functional.cross_entropy(outputs, targets.long(), reduction="none")

    def hessian_product(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        probability = _check(outputs).softmax(-1)
        return probability * (vectors * _sum_of_others(probability) - _sum_of_others(probability * vectors))

    def factor_product(self, outputs: Tensor, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        probability = _check(outputs).softmax(-1)
        root = (0.5 * outputs.log_softmax(-1)).exp()
        own = root * _sum_of_others(probability) * vectors
        if transpose:
            return own - root * _sum_of_others(probability * vectors)
        return own - probability * _sum_of_others(root * vectors)

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """Inverts the cumulative distribution with the first uniform number of each point."""
        cumulative = _check(outputs).double().softmax(-1).cumsum(-1)
        drawn = torch.searchsorted(cumulative, uniform[:, :1].double().contiguous())
        return drawn.squeeze(-1).clamp(max=outputs.shape[-1] - 1)


def _check(outputs: Tensor) -> Tensor:
    if outputs.shape[-1] < 2:
        raise DataError(
            "classification needs at least two outputs a point, got one, whose softmax is always 1; "
            "for a single logit use the likelihood 'multilabel'"
        )
    return outputs


def _sum_of_others(values: Tensor) -> Tensor:
    """For each entry the sum of all other entries of the last dimension, without subtraction."""
    # `total - own` would cancel; running sums from both ends, shifted by one place, do not.
    before = functional.pad(values.cumsum(-1)[..., :-1], (1, 0))
    after = functional.pad(values.flip(-1).cumsum(-1)[..., :-1], (1, 0)).flip(-1)
    return before + after
