"""The leading directions of H: the few vectors in output space along which the predicted distribution moves most.

Letters: H (t, t) the Hessian of the loss at a point, λ its eigenvalues, u their eigenvectors, m the number asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from slu.seeds import stream

_ITERATIONS = 20
_SPARE = 4  # directions iterated beside those asked for: the error falls with the ratio of the eigenvalues so far apart
_SHIFT = 1e-12  # of H, relative: keeps directions that H maps to zero, instead of what a QR puts in their place


def leading(likelihood: Any, outputs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of a likelihood without a method `leading`: directions u (b, m, t) of unit length and √λ (b, m), largest first.

    m is `count`, at most t.

    Cost: 20 products with H for each of m + 4 vectors.
    """
    wide, size = outputs.double(), outputs.shape[1]
    starts = torch.randn(min(count + _SPARE, size), size, generator=stream(0, "leading", size), dtype=torch.float64)
    starts = starts.to(outputs.device)[None].expand(len(outputs), -1, -1)
    directions, roots = subspace_iteration(lambda each: likelihood.hessian_product(wide, each), starts, count)
    return directions.to(outputs.dtype), roots


def subspace_iteration(
    product: Callable[[Tensor], Tensor], starts: Tensor, count: int, *, centred: bool = False
) -> tuple[Tensor, Tensor]:
    """The leading eigenvectors (b, m, t) of H and √λ (b, m), by subspace iteration and Rayleigh-Ritz.

    Args:
        product: H u for vectors u (q, b, t).
        starts: (b, q, t) independent vectors; a few more than are asked for.
        count: How many are asked for; m is that or q, whichever is less.
        centred: Whether H maps the constant to zero, and no direction may have a part of it; nor do the starts.

    Cost: 20 products and QR factorizations of q vectors; q t numbers per point.

    Numerics: float64. If the starts span the range of H, exact up to the rounding of the largest λ: directions whose λ
    are below that are mixed with each other. Otherwise the error of λ_m falls with (λ_q+1 / λ_m)^40: where these are
    nearly equal, directions are mixed that count nearly alike.
    """
    basis = torch.linalg.qr(starts.transpose(1, 2)).Q
    for _ in range(_ITERATIONS):
        moved = _apply(product, basis)
        largest = moved.abs().amax((1, 2), keepdim=True)
        moved = moved / largest.where(largest > 0, 1.0) + _SHIFT * basis
        # After the division: the mean of products that underflow is not exact.
        basis = torch.linalg.qr(moved - moved.mean(1, keepdim=True) if centred else moved).Q
    projected = basis.transpose(1, 2) @ _apply(product, basis)
    largest = projected.abs().amax((1, 2), keepdim=True)
    projected = projected / largest.where(largest > 0, 1.0)  # or its squares would underflow
    # Of -H, so that the largest come first, and directions without curvature in the order of the starts.
    values, vectors = torch.linalg.eigh(-0.5 * (projected + projected.transpose(1, 2)))
    directions = (basis @ vectors[..., :count]).transpose(1, 2)
    return directions, (-values[:, :count]).clamp(min=0).sqrt() * largest[:, 0].sqrt()


def _apply(product: Callable[[Tensor], Tensor], columns: Tensor) -> Tensor:
    """H times columns (b, t, q)."""
    return product(columns.permute(2, 0, 1)).permute(1, 2, 0)
