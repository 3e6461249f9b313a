"""Sketches that hold their whole matrix: the textbook's, for comparison at small p."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from slu import seeds
from slu.sketches.base import Sketch, SketchSpec


class _Matrix:
    """The transpose of S, (p, s), so that the rows of a segment lie together."""

    def __init__(self, transposed: Tensor) -> None:
        self.transposed = transposed
        self.state_bytes = transposed.numel() * transposed.element_size()

    def add(self, start: int, values: Tensor, into: Tensor) -> None:
        """into += S[:, start:] values."""
        into.addmm_(values.to(into.dtype), self.transposed[start : start + values.shape[1]].to(into.dtype))

    def rows(self, start: int, stop: int, vector: Tensor) -> Tensor:
        """Rows start:stop of Sᵀ vector."""
        return vector @ self.transposed[start:stop].to(vector.dtype).mT


@final
class Gaussian(Sketch):
    """Independent normal entries of variance 1/s.

    Cost: s·p floats of state; s·p products a vector.
    Numerics: drawn in float32; the matrix is held in the sketch's dtype and cast for others.
    """

    ORTHOGONAL_ROWS = False

    def __init__(self, spec: SketchSpec, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(spec, device, dtype)
        s, p = self.shape
        entries = torch.randn(p, s, generator=seeds.stream(spec.seed, "sketch", "gaussian"))
        self._matrix = _Matrix(entries.to(device, dtype).mul_(s**-0.5))

    @property
    def state_bytes(self) -> int:
        """The matrix."""
        return self._matrix.state_bytes

    @classmethod
    def state_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:
        """s·p numbers."""
        return spec.size * spec.parameters * bytes_each

    def _add(self, start: int, values: Tensor, into: Tensor) -> None:
        self._matrix.add(start, values, into)

    def _rows(self, start: int, stop: int, vector: Tensor) -> Tensor:
        return self._matrix.rows(start, stop, vector)


@final
class Rademacher(Sketch):
    """Independent entries ±1/√s: every column has length 1 exactly.

    Cost: s·p floats of state; s·p products a vector.
    Numerics: the matrix is held in the sketch's dtype and cast for others.
    """

    ORTHOGONAL_ROWS = False

    def __init__(self, spec: SketchSpec, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(spec, device, dtype)
        s, p = self.shape
        stream = seeds.stream(spec.seed, "sketch", "rademacher")
        bits = torch.randint(0, 2, (p, s), dtype=torch.int8, generator=stream)
        self._matrix = _Matrix(bits.mul_(2).sub_(1).to(device, dtype).mul_(s**-0.5))

    @property
    def state_bytes(self) -> int:
        """The matrix."""
        return self._matrix.state_bytes

    @classmethod
    def state_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:
        """s·p numbers."""
        return spec.size * spec.parameters * bytes_each

    def _add(self, start: int, values: Tensor, into: Tensor) -> None:
        self._matrix.add(start, values, into)

    def _rows(self, start: int, stop: int, vector: Tensor) -> Tensor:
        return self._matrix.rows(start, stop, vector)
