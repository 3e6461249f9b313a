"""The paper's sketch: one transform over the whole vector."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from slu import seeds
from slu.sketches.base import PIECE, Sketch
from slu.sketches.fourier import draw_rows, fast_length, half_spectrum, half_spectrum_adjoint
from slu.sketches.signs import PackedSigns
from slu.sketches.spec import SketchSpec


@final
class Srft(Sketch):
    """S = √(n/s) R F D over the vector padded with zeros to a fast length n >= p.

    D: random signs; F: the real orthonormal Fourier transform; R: s different rows. The paper's
    authors run an orthonormal DCT-III and draw rows with replacement; ours differs in the
    transform (torch has a real FFT, no DCT) and draws without, which is never worse: a row drawn
    twice adds nothing, and with s = n ours is an isometry.

    Cost: p/8 bytes and s row numbers; one FFT of length n a vector and call, whatever the segment's
    length, and its n floats of scratch. Prefer "block_srft" for large p or short segments.
    Numerics: FFT in the dtype of the vectors.
    """

    def __init__(self, spec: SketchSpec, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(spec, device, dtype)
        s, p = self.shape
        self.grain = p
        self._n = self.padded = fast_length(p)
        self._scale = math.sqrt(2 * self._n / s)  # √2: the transform gives F x / √2
        self._signs = PackedSigns(p, seeds.stream(spec.seed, "sketch", "srft", "signs"), device)
        self._places = draw_rows(self._n, s, seeds.stream(spec.seed, "sketch", "srft", "rows")).to(device)

    @property
    def state_bytes(self) -> int:
        """Sign bits and row numbers."""
        return self._signs.state_bytes + self._places.numel() * self._places.element_size()

    @classmethod
    def state_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:  # noqa: ARG003
        """p/8 bytes, and eight for each row."""
        return PackedSigns.state_bytes_of(spec.parameters) + 8 * spec.size

    @classmethod
    def scratch_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:
        """The padded vector, its spectrum twice, signs, and the transform's own copy."""
        return 5 * max(fast_length(spec.parameters), PIECE) * bytes_each

    def _add(self, start: int, values: Tensor, into: Tensor) -> None:
        stop = start + values.shape[1]
        x = into.new_zeros(values.shape[0], self._n)
        torch.mul(values, self._signs.unpack(start, stop, into.dtype), out=x[:, start:stop])
        into.add_(half_spectrum(x).index_select(1, self._places), alpha=self._scale)

    def _rows(self, start: int, stop: int, vector: Tensor) -> Tensor:
        y = vector.new_zeros(vector.shape[0], self._n + 2)
        y[:, self._places] = vector * self._scale
        x = half_spectrum_adjoint(y)[:, start:stop]
        return x * self._signs.unpack(start, stop, vector.dtype)
