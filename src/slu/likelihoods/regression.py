"""Gaussian noise around t real outputs."""

from __future__ import annotations

import sys
from functools import lru_cache

import torch
from torch import Tensor

from slu.errors import DataError, SettingError
from slu.seeds import stream


class Regression:
    """ℓ = ‖y - f‖² / (2 σ²), so H = I / σ² and L = I / σ.

    Args:
        noise_variance: σ², the variance of the targets around the outputs: the mean squared
            error on held-out data is the usual estimate. It scales the curvature and the fisher
            reading, and leaves the paper's score as it is.
    """

    def __init__(self, noise_variance: float = 1.0) -> None:
        if not 0 < noise_variance <= sys.float_info.max:
            raise SettingError(f"the noise variance must be positive and finite, got {noise_variance}")
        self.noise_variance = float(noise_variance)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if targets.dim() == 1 and outputs.shape[1] == 1:
            targets = targets.unsqueeze(1)
        if targets.shape != outputs.shape:
            raise DataError(
                f"regression needs targets shaped like the outputs, {tuple(outputs.shape)}; got {tuple(targets.shape)}"
            )
        return (outputs - targets).square().sum(1) / (2 * self.noise_variance)

    def hessian_product(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        return (vectors / self.noise_variance).expand(torch.broadcast_shapes(outputs.shape, vectors.shape))

    def factor_product(self, outputs: Tensor, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        del transpose  # L is a multiple of the identity
        return (vectors / self.noise_variance**0.5).expand(torch.broadcast_shapes(outputs.shape, vectors.shape))

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        normal = torch.special.ndtri(uniform.double()).to(outputs.dtype)
        return outputs + self.noise_variance**0.5 * normal

    def leading(self, outputs: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Directions u (b, m, t) of unit length and √λ (b, m); m is `count`, at most t.

        H has no leading directions: all outputs count alike. For m < t these are m fixed mixtures of all outputs with
        signs, and λ = t / (m σ²), so that Σ λ u uᵀ has the diagonal and the trace of H, and is H on average over the
        signs of the columns. For m = t they are the outputs themselves.
        """
        points, size = outputs.shape
        number = min(count, size)
        directions = _mixtures(number, size).to(outputs)[None].expand(points, -1, -1)
        scale = (size / number / self.noise_variance) ** 0.5
        return directions, torch.full((points, number), scale, dtype=torch.float64, device=outputs.device)


@lru_cache(maxsize=8)
def _mixtures(count: int, size: int) -> Tensor:
    """(m, t) rows of unit length: the first of a Hadamard matrix, cut to t columns, each of which has a random sign.

    Every entry is ±1/√t, whatever the signs; rows are orthogonal if t is a power of two, and nearly so if m is small.
    """
    if count == size:
        return torch.eye(size, dtype=torch.float64)
    bits = torch.arange(count)[:, None] & torch.arange(size)
    for shift in (16, 8, 4, 2, 1):
        bits = bits ^ (bits >> shift)
    signs = torch.randint(2, (size,), generator=stream(0, "leading", size)) * 2 - 1
    return ((1 - 2 * (bits & 1)) * signs).double() / size**0.5
