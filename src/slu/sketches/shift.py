"""Runs of s numbers, each with random signs, shifted around and added up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from slu import seeds
from slu.sketches.base import PIECE, PackedSigns, Sketch, SketchSpec

_MANY = 16  # rows from which a loop over runs costs less than copying them
_STRETCH = 1 << 16  # signs unpacked at a time for many rows


@final
class Shift(Sketch):
    """bucket(i) = (i + shift[⌊i/s⌋]) mod s with a random sign per number.

    A count sketch whose buckets need no table: within a run of s numbers it is an isometry, between
    two runs any two numbers meet with probability 1/s.

    Cost: p/8 bytes and p/s shifts; about one addition per number.
    Numerics: as "hashed": not for vectors with few nonzeros.
    """

    def __init__(self, spec: SketchSpec, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(spec, device, dtype)
        s, p = self.shape
        self.grain = s
        shifts = torch.randint(0, s, (-(-p // s),), generator=seeds.stream(spec.seed, "sketch", "shift", "shifts"))
        self._shifts, self._shift_list = shifts.to(device), shifts.tolist()
        self._signs = PackedSigns(p, seeds.stream(spec.seed, "sketch", "shift", "signs"), device)

    @classmethod
    def state_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:  # noqa: ARG003
        """p/8 bytes, and eight for each run of s."""
        return PackedSigns.state_bytes_of(spec.parameters) + 8 * -(-spec.parameters // spec.size)

    @classmethod
    def scratch_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:
        """Six times the runs that are shifted in one call."""
        return 6 * min(max(PIECE, spec.size), spec.parameters + spec.size) * bytes_each

    def _pieces(self, rows: int, start: int, stop: int) -> Iterator[tuple[slice, int, int]]:
        """Many rows are read in place, so a piece need not fit the cache: all rows, and long stretches."""
        if rows < _MANY:
            yield from super()._pieces(rows, start, stop)
            return
        step = max(1, _STRETCH // self.grain) * self.grain
        while start < stop:
            end = min(stop, (start // step + 1) * step)
            yield slice(0, rows), start, end
            start = end

    def _add(self, start: int, values: Tensor, into: Tensor) -> None:
        if len(values) >= _MANY:
            self._add_many(start, values, into)
            return
        s, stop = self.spec.size, start + values.shape[1]
        first, end = start // s, -(-stop // s)
        x = values * self._signs.unpack(start, stop, into.dtype)
        if (start, stop) != (first * s, end * s):
            x = pad(x, (start - first * s, end * s - stop))
        x = x.view(len(x), end - first, s)
        # Each run twice in a row: a run shifted around is then one window, copied as a whole.
        windows = torch.cat([x, x], 2).view(len(x), -1).unfold(1, s, 1)
        begins = torch.arange(s, 2 * s * (end - first), 2 * s, device=self.device) - self._shifts[first:end]
        into += windows[:, begins].sum(1)

    def _add_many(self, start: int, values: Tensor, into: Tensor) -> None:
        """Run by run: signs, shift and sum in one reading of the values, in two parts where a run goes around."""
        s, stop = self.spec.size, start + values.shape[1]
        signs = self._signs.unpack(start, stop, into.dtype)
        for run in range(start // s, -(-stop // s)):
            a, b, shift = max(start, run * s), min(stop, (run + 1) * s), int(self._shift_list[run])
            around = min(max((run + 1) * s - shift, a), b)
            for low, high, turn in ((a, around, shift), (around, b, shift - s)):
                if low < high:
                    place = low - run * s + turn
                    part = slice(low - start, high - start)
                    into[:, place : place + high - low].addcmul_(values[:, part], signs[part])

    def _rows(self, start: int, stop: int, vector: Tensor) -> Tensor:
        s = self.spec.size
        first, end = start // s, -(-stop // s)
        buckets = (torch.arange(s, device=self.device) + self._shifts[first:end, None]) % s
        x = vector.index_select(1, buckets.view(-1)[start - first * s : stop - first * s])
        return x * self._signs.unpack(start, stop, vector.dtype)
