"""Sketches that hold their whole matrix: the textbook's, for comparison at small p."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from slu import seeds
from slu.sketches.base import Sketch, SketchSpec


class _Dense(Sketch):
    """A matrix of independent entries, held as its transpose (p, s), so that the rows of a segment are contiguous.

    Cost: s·p floats of state; s·p products per vector.
    Numerics: the matrix is held in the sketch's dtype and cast for others.
    """

    ORTHOGONAL_ROWS = False
    _transposed: Tensor

    @classmethod
    def state_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:
        """s·p numbers."""
        return spec.size * spec.parameters * bytes_each

    def _add(self, start: int, values: Tensor, into: Tensor) -> None:
        into.addmm_(values.to(into.dtype), self._transposed[start : start + values.shape[1]].to(into.dtype))

    def _rows(self, start: int, stop: int, vector: Tensor) -> Tensor:
        return vector @ self._transposed[start:stop].to(vector.dtype).mT


@final
class Gaussian(_Dense):
    """Independent normal entries of variance 1/s, drawn in float32."""

    def __init__(self, spec: SketchSpec, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(spec, device, dtype)
        s, p = self.shape
        entries = torch.randn(p, s, generator=seeds.stream(spec.seed, "sketch", "gaussian"))
        self._transposed = entries.to(device, dtype).mul_(s**-0.5)


@final
class Rademacher(_Dense):
    """Independent entries ±1/√s: every column has length 1 exactly."""

    def __init__(self, spec: SketchSpec, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(spec, device, dtype)
        s, p = self.shape
        stream = seeds.stream(spec.seed, "sketch", "rademacher")
        bits = torch.randint(0, 2, (p, s), dtype=torch.int8, generator=stream)
        self._transposed = bits.mul_(2).sub_(1).to(device, dtype).mul_(s**-0.5)
