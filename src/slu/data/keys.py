"""A number for each sample that depends on its content alone.

Random choices that belong to a sample (its label, its signs) are keyed by this number, so they do
not change with the batch size or the order of the loader. The sum of the keys over a data set,
modulo 2⁶⁴, is an exact fingerprint that does not depend on the order either.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from slu.data.batches import counts_points, tensors
from slu.seeds import derived_seed

# The increment and multipliers of the splitmix64 generator, as signed 64-bit numbers.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)

_SAME_WIDTH = {torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16}
_SAME_WIDTH[torch.bfloat16] = torch.int16


def sample_keys(tree: Any, points: int) -> Tensor:
    """(points,) int64 keys of a batch; tensors whose first dimension is `points` count by rows.

    Cost: one integer multiplication a number of the batch; two copies of it in 64-bit integers.
    """
    parts = tensors(tree)
    device = parts[0].device if parts else torch.device("cpu")
    keys = torch.zeros(points, dtype=torch.int64, device=device)
    for place, tensor in enumerate(parts):
        bits = tensor.detach().contiguous()
        bits = torch.view_as_real(bits.resolve_conj()) if bits.is_complex() else bits
        bits = bits.view(_SAME_WIDTH[bits.dtype]) if bits.dtype in _SAME_WIDTH else bits
        rows = bits.reshape(points, prod(bits.shape[1:])) if counts_points(tensor, points) else bits.reshape(1, -1)
        hashed = (rows.to(torch.int64) * _multipliers(rows.shape[1], device)).sum(1)
        keys = _mixed(keys + hashed + place)
    return keys


def uniforms(keys: Tensor, count: int, seed: int, purpose: str) -> Tensor:
    """(b, count) float64 numbers strictly inside (0, 1), a pure function of keys, seed and purpose."""
    columns = torch.arange(1, count + 1, device=keys.device) * _STEP
    mixed = _mixed(_mixed(keys + derived_seed(seed, purpose))[:, None] + columns)
    # 52 bits and a half are exact in float64; of 53 the largest would round to 1.
    return (_shift_right(mixed, 12).double() + 0.5) * 2.0**-52


@lru_cache(maxsize=8)
def _multipliers(count: int, device: torch.device) -> Tensor:
    return _mixed(torch.arange(1, count + 1, device=device) * _STEP) | 1


def _mixed(values: Tensor) -> Tensor:
    """The output function of splitmix64; int64 arithmetic wraps around, as it should."""
    values = (values ^ _shift_right(values, 30)) * _FIRST
    values = (values ^ _shift_right(values, 27)) * _SECOND
    return values ^ _shift_right(values, 31)


def _shift_right(values: Tensor, places: int) -> Tensor:
    """A logical shift: torch's own keeps the sign."""
    return (values >> places) & ((1 << (64 - places)) - 1)
