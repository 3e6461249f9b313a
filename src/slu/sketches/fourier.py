"""The real orthonormal Fourier transform F (n, n) for even n, and sampled rows of it.

The rows of F are 1/√n, then √(2/n) cos and √(2/n) -sin of each frequency, and (-1)^i/√n. They are
read off torch's half spectrum seen as n + 2 real numbers, of which numbers 1 and n + 1 are always 0.
"""

from __future__ import annotations

import math
from typing import Any

import scipy.fft
import torch
from torch import Tensor


def fast_length(least: int) -> int:
    """The next even length with small prime factors.

    >>> fast_length(1009), fast_length(16_384)
    (1024, 16384)
    """
    half: Any = scipy.fft.next_fast_len((least + 1) // 2)  # scipy's stub says None
    return 2 * int(half)


def draw_rows(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Places of `count` different rows of F in the half spectrum seen as n + 2 real numbers."""
    rows = torch.randperm(n, generator=generator)[:count]
    return torch.where(rows == 0, 0, rows + 1)


def half_spectrum(x: Tensor) -> Tensor:
    """F x / √2 with two zeros mixed in: (..., n) -> (..., n + 2).

    Cost: one real FFT; n + 2 floats out.
    Numerics: the FFT's error grows like log n in the dtype of x.
    """
    y = torch.view_as_real(torch.fft.rfft(x, norm="ortho"))
    y[..., 0, :] *= math.sqrt(0.5)
    y[..., -1, :] *= math.sqrt(0.5)
    return y.flatten(-2)


def half_spectrum_adjoint(y: Tensor) -> Tensor:
    """The adjoint of `half_spectrum`: (..., n + 2) -> (..., n); changes y.

    Cost: one inverse real FFT; n floats out.
    Numerics: the inverse counts each inner frequency twice, hence the half; it ignores numbers 1
    and n + 1.
    """
    y = y.unflatten(-1, (-1, 2))
    y[..., 0, :] *= math.sqrt(2)
    y[..., -1, :] *= math.sqrt(2)
    return torch.fft.irfft(torch.view_as_complex(y), n=2 * y.shape[-2] - 2, norm="ortho") * 0.5
