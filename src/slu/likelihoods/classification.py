"""Softmax over t classes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from slu.errors import DataError


class Classification:
    """Cross-entropy of a softmax: H = diag(π) - π πᵀ with π = softmax(outputs).

    The factor is L = diag(√π) R, where R reflects √π to minus the unit vector of the likeliest class m and has zeros
    as its column m: R Rᵀ = I - √π √πᵀ, so L Lᵀ = H. Column c is a shift of the prediction between c and m.
    These are t - 1 columns, as many as the rank of H; the t columns √π_j (e_j - π), gradients of the loss at each
    label, give H as well, but at unsure points a random mixture of them varies more (`OutputSpace.roots`).

    Numerics:
        A confident network has 1 - π_m far below the rounding of π_m, and the plain formulas
        subtract two nearly equal numbers there. Here every product is written with the *other*
        classes instead, which keeps full relative accuracy down to underflow.
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _check(outputs)
        if targets.shape != outputs.shape[:1] or targets.is_floating_point():
            raise DataError(
                f"classification needs one class index per point: targets of shape ({len(outputs)},) and an integer "
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
        root = (0.5 * _check(outputs).log_softmax(-1)).exp()
        place = outputs.argmax(-1, keepdim=True)
        likeliest = torch.zeros_like(outputs, dtype=torch.bool).scatter(-1, place, value=True)
        reach = 1 + root.gather(-1, place)
        if transpose:
            vectors = vectors.broadcast_to(torch.broadcast_shapes(vectors.shape, outputs.shape))
            relative = vectors - vectors.gather(-1, place.expand(*vectors.shape[:-1], 1))
            reflected = relative - (root.square() * relative).sum(-1, keepdim=True) / reach
            return (root * reflected).masked_fill(likeliest, 0.0)
        others = vectors.masked_fill(likeliest, 0.0)
        total = (root * others).sum(-1, keepdim=True)
        return torch.where(likeliest, -root * total, root * (others - root * total / reach))

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """Inverts the cumulative distribution with the first uniform number of each point."""
        cumulative = _check(outputs).double().softmax(-1).cumsum(-1)
        drawn = torch.searchsorted(cumulative, uniform[:, :1].double().contiguous())
        return drawn.squeeze(-1).clamp(max=outputs.shape[-1] - 1)


def _check(outputs: Tensor) -> Tensor:
    if outputs.shape[-1] < 2:
        raise DataError(
            "classification needs at least two outputs per point, got one, whose softmax is always 1; "
            "for a single logit use the likelihood 'multilabel'"
        )
    return outputs


def _sum_of_others(values: Tensor) -> Tensor:
    """For each entry the sum of all other entries of the last dimension, without subtraction."""
    # `total - own` would cancel; running sums from both ends, shifted by one place, do not.
    before = functional.pad(values.cumsum(-1)[..., :-1], (1, 0))
    after = functional.pad(values.flip(-1).cumsum(-1)[..., :-1], (1, 0)).flip(-1)
    return before + after
