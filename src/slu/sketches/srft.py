"""Subsampled randomized Fourier transforms: over the whole vector, as in the paper, or over blocks of it.

F (n, n) is the real orthonormal Fourier transform for even n. Its rows are 1/√n, then √(2/n) cos and √(2/n) -sin of
each frequency, and (-1)^i/√n. They are read off torch's half spectrum seen as n + 2 real numbers, of which numbers 1
and n + 1 are always 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, final

import scipy.fft
import torch
from torch import Tensor
from torch.nn.functional import pad

from slu import seeds
from slu.sketches.base import PIECE, PackedSigns, Sketch, SketchSpec

_LONG = 8192  # sketch sizes above which blocks are at least twice as long


@final
class Srft(Sketch):
    """S = √(n/s) R F D over the vector padded with zeros to a fast length n >= p.

    D: random signs; F: the real orthonormal Fourier transform; R: s different rows. The paper's
    authors run an orthonormal DCT-III and draw rows with replacement; ours differs in the
    transform (torch has a real FFT, no DCT) and draws without, which is never worse: a row drawn
    twice adds nothing, and with s = n ours is an isometry.

    Cost: p/8 bytes and s row numbers; one FFT of length n per vector and call, whatever the segment's
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

    @classmethod
    def state_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:  # noqa: ARG003
        """p/8 bytes, and eight for each row."""
        return PackedSigns.state_bytes_of(spec.parameters) + 8 * spec.size

    @classmethod
    def block_of(cls, spec: SketchSpec) -> int:
        """All of them."""
        return spec.parameters

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


@final
class BlockSrft(Sketch):
    """S = [S₁ S₂ …], S_j = √(n_j/s) E_j R_j F D_j, over blocks that tile the flat vector.

    D_j: random signs; F: the real orthonormal Fourier transform of length n_j; R_j: s different rows;
    E_j: random signs of the s outputs. Rows and output signs are drawn for each block: shared, they
    would map vectors at the same place in two blocks onto each other. The last block is
    padded to a fast length, and every block to at least s, so that R_j exists.

    Cost: p/8 bytes and 2 s bytes per block (4 s for blocks above 32,765), at most half of p floats; one FFT of the
    block's length per vector for each block that a segment touches; short pieces of a gradient are joined before.
    Numerics: FFT in the dtype of the vectors.
    """

    DEFAULTS = {"block": 16_384}  # noqa: RUF012

    def __init__(self, spec: SketchSpec, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(spec, device, dtype)
        s, p = self.shape
        self.grain = _grain(self.spec)
        self.piece = 2 * PIECE  # many blocks per call: torch plans each FFT anew, at the cost of several blocks
        self._lengths = _lengths(self.spec)
        self.padded = max(self._lengths)

        def stream(purpose: str) -> torch.Generator:
            return seeds.stream(spec.seed, "sketch", "block_srft", purpose)

        self._signs = PackedSigns(p, stream("signs"), device)
        rows, outputs = stream("rows"), stream("outputs")
        # A place and its output's sign in one small number: ~place means a flipped sign. Block by block,
        # because the numbers drawn are four times as wide.
        codes = torch.empty(len(self._lengths), s, dtype=_width(self.grain))
        for n, code in zip(self._lengths, codes, strict=True):
            places = draw_rows(n, s, rows)
            flipped = torch.randint(0, 2, (s,), generator=outputs)
            code.copy_(torch.where(flipped == 1, ~places, places))
        self._codes = codes.to(device)

    @classmethod
    def state_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:  # noqa: ARG003
        """p/8 bytes, and two (four above 32,765 rows) for each block and output."""
        blocks = len(_lengths(spec))
        return PackedSigns.state_bytes_of(spec.parameters) + blocks * spec.size * _width(_grain(spec)).itemsize

    @classmethod
    def block_of(cls, spec: SketchSpec) -> int:
        """Of all blocks but the last."""
        return min(_grain(spec), spec.parameters)

    @classmethod
    def scratch_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:
        """Five times the blocks that are transformed in one call."""
        return 5 * min(max(2 * PIECE, _grain(spec)), sum(_lengths(spec))) * bytes_each

    def _add(self, start: int, values: Tensor, into: Tensor) -> None:
        for j, k, n in self._runs(start, start + values.shape[1]):
            a, b = max(start, j * self.grain), min(start + values.shape[1], k * self.grain)
            x = values[:, a - start : b - start] * self._signs.unpack(a, b, into.dtype)
            front = a - j * self.grain
            if x.shape[1] != (k - j) * n:
                x = pad(x, (front, (k - j) * n - front - (b - a)))
            y = half_spectrum(x.view(len(x), k - j, n))
            places, signs = self._rows_of(j, k, into.dtype)
            y = y.gather(2, places.expand(len(x), -1, -1)).mul_(signs).sum(1)
            into.add_(y, alpha=math.sqrt(2 * n / self.spec.size))  # √2: half_spectrum gives F x / √2

    def _rows(self, start: int, stop: int, vector: Tensor) -> Tensor:
        parts = []
        for j, k, n in self._runs(start, stop):
            a, b = max(start, j * self.grain), min(stop, k * self.grain)
            y = vector.new_zeros(len(vector), k - j, n + 2)
            places, signs = self._rows_of(j, k, vector.dtype)
            x = (vector * math.sqrt(2 * n / self.spec.size))[:, None] * signs
            y.scatter_(2, places.expand(len(vector), -1, -1), x)
            x = half_spectrum_adjoint(y).view(len(vector), -1)[:, a - j * self.grain : b - j * self.grain]
            parts.append(x * self._signs.unpack(a, b, vector.dtype))
        return torch.cat(parts, 1)

    def _rows_of(self, j: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Places (k - j, s) in the half spectra of blocks j:k, and the signs of their outputs."""
        codes = self._codes[j:k].long()
        return torch.where(codes < 0, ~codes, codes), (codes >= 0).to(dtype).mul_(2).sub_(1)

    def _runs(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Blocks j:k of one length n that cover start:stop; only the last block may differ."""
        first, end = start // self.grain, -(-stop // self.grain)
        full = min(end, self.spec.parameters // self.grain)
        if first < full:
            yield first, full, self.grain
        if end > full:
            yield max(first, full), end, self._lengths[-1]


def _grain(spec: SketchSpec) -> int:
    """The length of all blocks but the last."""
    # Rows of long sketches would take as much as the parameters: their blocks are twice as long.
    least = 2 * spec.size if spec.size > _LONG else spec.size
    return fast_length(max(spec.options["block"], least))


def _lengths(spec: SketchSpec) -> list[int]:
    blocks, rest = divmod(spec.parameters, _grain(spec))
    return [_grain(spec)] * blocks + ([fast_length(max(rest, spec.size))] if rest else [])


def _width(grain: int) -> torch.dtype:
    """The narrowest type for places in a half spectrum and their complements."""
    return torch.int16 if grain + 2 <= torch.iinfo(torch.int16).max else torch.int32


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
