"""Every number goes to one bucket with a random sign (count sketch), or to a few."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from slu import seeds
from slu.errors import SettingError
from slu.sketches.base import PackedSigns, Sketch, SketchSpec


@final
class Hashed(Sketch):
    """Column i of S has q nonzeros ±1/√q, one in each of q equal bands of the s outputs.

    The buckets are a random permutation modulo the band's length, not independent draws: with p/s
    near 1, independent draws would leave a third of the outputs empty.

    Cost: q (4 bytes and one bit) and q additions per number.
    Numerics: vectors with few nonzeros may fall into one bucket and cancel; the
    transforms do not have this.
    """

    DEFAULTS = {"nonzeros": 1}  # noqa: RUF012

    def __init__(self, spec: SketchSpec, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(spec, device, dtype)
        s, p = self.shape
        q = self.spec.options["nonzeros"]
        if q > s:
            raise SettingError(f"{q} nonzeros per column do not fit a sketch of size {s}; take at most {s}")
        self._tables: list[tuple[Tensor, PackedSigns]] = []
        for band in range(q):
            low, high = band * s // q, (band + 1) * s // q
            stream = seeds.stream(spec.seed, "sketch", "hashed", "buckets", band)
            buckets = torch.randperm(p, dtype=torch.int32, generator=stream).remainder_(high - low).add_(low)
            signs = PackedSigns(p, seeds.stream(spec.seed, "sketch", "hashed", "signs", band), device)
            self._tables.append((buckets.to(device), signs))

    @classmethod
    def state_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:  # noqa: ARG003
        """Four bytes and a bit for each nonzero."""
        p = spec.parameters
        return spec.options["nonzeros"] * (4 * p + PackedSigns.state_bytes_of(p))

    def _add(self, start: int, values: Tensor, into: Tensor) -> None:
        stop = start + values.shape[1]
        scale = len(self._tables) ** -0.5
        for buckets, signs in self._tables:
            x = values * (signs.unpack(start, stop, into.dtype) * scale)
            # scatter_add_ runs along a row; index_add_ on columns is two orders slower on the CPU.
            into.scatter_add_(1, buckets[start:stop].long().expand(len(x), -1), x)

    def _rows(self, start: int, stop: int, vector: Tensor) -> Tensor:
        scale = len(self._tables) ** -0.5
        out = vector.new_zeros(len(vector), stop - start)
        for buckets, signs in self._tables:
            x = vector.index_select(1, buckets[start:stop])
            out.addcmul_(x, signs.unpack(start, stop, vector.dtype), value=scale)
        return out
