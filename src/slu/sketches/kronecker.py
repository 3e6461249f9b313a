"""A Fourier transform of every matrix, sampled at pairs of frequencies: takes gradients that were never formed.

The transform of an outer product b aᵀ in two dimensions is the outer product of the transforms of b and a, so s of its
numbers need only these two: the Kronecker fast Johnson-Lindenstrauss transform (Jin, Kolda and Ward).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from slu import seeds
from slu.errors import SettingError
from slu.sketches.base import Sketch, SketchSpec
from slu.sketches.srft import BlockSrft, fast_length

_LARGE = 4  # a matrix of at least this many times s padded numbers has a transform of its own
_WHOLE = 1 << 20  # numbers up to which a formed matrix may be transformed in both dimensions at once
_CHUNK = 1 << 19  # numbers of factors, transforms and products in one step: 2 MB in float32
_BLOCK = 4096  # of the joined vector: one bias costs the transform of a whole block


@final
class Kronecker(Sketch):
    """S = [S₁ S₂ …] over the tensors of the spec's `layout`, each seen as a matrix G (o, i).

    A large matrix: S_j vec G = √(2/s) E R (W_o D_o G D_i W_i), with W the complex Fourier transforms of fast lengths
    o' >= o and i' >= i, D random signs, R the real and imaginary parts at s/2 different pairs of frequencies (k, l), E
    a random order and random signs of the outputs. These are rows of a real orthonormal transform in two dimensions,
    times √(o' i'/s). All |k| and all l occur equally often, up to one, or at most once: then a gradient b aᵀ of one
    position has the error of a Gaussian sketch where s is at least o' and i'. Products of a real number each, drawn
    at random, would have four times its variance. Large is a matrix with both dimensions above 1 and o' i' >= 4 s.

    All other tensors (biases, norms, small matrices) are joined to one vector, which goes through "block_srft".

    Cost: o + i + 5 s bytes per large matrix (9 s if s or a length is above 32,767), and that of the joined vector.
    T positions of a factored gradient: T (o log o + i log i + s). A formed matrix: the transform in two dimensions,
    or i log i + s per row, whichever is cheaper.
    Numerics: FFT in the dtype of `into`; the angles of rows that are given by number are reduced as whole numbers.
    """

    def __init__(self, spec: SketchSpec, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(spec, device, dtype)
        self._starts, self._offsets = [0], [0]  # of each tensor in the flat and in the joined vector
        self._matrices: list[_Matrix | None] = []
        for number, (o, i) in enumerate(self.spec.layout):
            large = is_large(o, i, self.spec.size)
            self._matrices.append(_Matrix(self.spec, number, device) if large else None)
            self._starts.append(self._starts[-1] + o * i)
            self._offsets.append(self._offsets[-1] + (0 if large else o * i))
        self._small = BlockSrft(_joined(self.spec), device, dtype) if self._offsets[-1] else None

    @classmethod
    def checked(cls, spec: SketchSpec) -> SketchSpec:
        """Only with the shapes of the tensors."""
        if not spec.layout:
            raise SettingError(
                f"sketch {spec.kind!r} needs the shapes of the tensors that hold the {spec.parameters} parameters, got "
                "none; give layout=, slu.parameters.matrix_shape of each tensor in the order of the flat vector"
            )
        return replace(super().checked(spec), layout=spec.layout)

    @classmethod
    def state_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:
        """Signs of rows and columns, s/2 pairs and s places per large matrix, and the joined vector's sketch."""
        state = 0
        for o, i in _large(spec):
            pairs = _pairs(spec.size)
            widths = (_width(fast_length(n) // 2).itemsize for n in (o, i))
            state += o + i + pairs * sum(widths) + spec.size * (1 + _width(2 * pairs).itemsize)
        inner = _joined(spec)
        return state + (0 if inner is None else BlockSrft.state_bytes_of(inner, bytes_each))

    @classmethod
    def scratch_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:
        """A chunk, in the largest case one position; or what the joined vector takes."""
        chunk = max((_per_position(o, i, spec.size) for o, i in _large(spec)), default=0)
        inner = _joined(spec)
        joined = 0 if inner is None else BlockSrft.scratch_bytes_of(inner, bytes_each)
        return max(joined, 2 * max(chunk, _CHUNK) * bytes_each if chunk else 0)

    def accumulate_outer(self, start: int, left: Tensor, right: Tensor, into: Tensor) -> None:
        """Add the sketch of Σ_τ left_τ right_τᵀ, a matrix (o, i) that is not formed.

        Args:
            start: The first coordinate of the matrix in the flat vector.
            left: (..., T, o), or (..., T) whole numbers: the row of the matrix that each position is of.
            right: (..., T, i). The leading dimensions are broadcast against those of `left`.
            into: (..., s), changed in place; the broadcast leading dimensions, the dtype of the work.
        """
        number = self._number_of(start)
        (o, i), s = self.spec.layout[number], self.spec.size
        by_row = not left.is_floating_point()
        lead = (left.shape[:-1] if by_row else left.shape[:-2]), right.shape[:-2]
        positions = left.shape[-1] if by_row else left.shape[-2]
        if right.shape[-2:] != (positions, i) or not (by_row or left.shape[-1] == o):
            raise SettingError(
                f"factors of the matrix ({o}, {i}) at coordinate {start} have the shapes (..., T, {o}) or (..., T) of "
                f"whole numbers, and (..., T, {i}); got {tuple(left.shape)} and {tuple(right.shape)}"
            )
        if into.shape != (*torch.broadcast_shapes(*lead), s):
            raise SettingError(
                f"`into` has shape {tuple(into.shape)}; factors of shapes {tuple(left.shape)} and "
                f"{tuple(right.shape)} need {(*torch.broadcast_shapes(*lead), s)}"
            )
        matrix = self._matrices[number]
        if matrix is None:  # small: formed at no more than 4 s numbers
            left = one_hot(left, o) if by_row else left
            formed = left.to(into.dtype).mT @ right.to(into.dtype)
            self.accumulate(start, formed.expand(*into.shape[:-1], o, i).flatten(-2), into)
            return
        dims = max(1, into.ndim - 1)  # at least one leading dimension, so that there is one to cut
        left = left.view((1,) * (dims - len(lead[0])) + tuple(left.shape))
        right = right.view((1,) * (dims - len(lead[1])) + tuple(right.shape))
        matrix.add_outer(left, right, into if into.ndim > 1 else into[None])

    def prefers_factors(self, start: int, positions: int) -> bool:
        """Whether a gradient of so many positions is sketched at a lower cost from its factors than formed."""
        matrix = self._matrices[self._number_of(start)]
        return matrix is not None and positions < min(matrix.o, matrix.i)

    def _number_of(self, start: int) -> int:
        """The number of the tensor that begins at a coordinate."""
        number = bisect_right(self._starts, start) - 1
        if not (0 <= number < len(self._matrices) and self._starts[number] == start):
            raise SettingError(
                f"no tensor begins at coordinate {start}; those of the layout begin at {self._starts[:-1]}"
            )
        return number

    def _pieces(self, rows: int, start: int, stop: int) -> Iterator[tuple[slice, int, int]]:
        """All rows, and adjacent tensors as long as they are few numbers; larger matrices in several rows at a time."""
        a = start
        while a < stop:
            number = bisect_right(self._starts, a) - 1
            (_, i), first, b = self.spec.layout[number], self._starts[number], self._starts[number + 1]
            if b - first > _WHOLE:
                b = min(b, first + ((a - first) // i + max(1, _WHOLE // i)) * i)
            while number + 2 < len(self._starts) and self._starts[number + 2] - a <= _WHOLE:
                number += 1
                b = self._starts[number + 1]
            b = min(b, stop)
            yield slice(0, rows), a, b
            a = b

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Each tensor within start:stop by its number, and the coordinates of it that are."""
        for number in range(bisect_right(self._starts, start) - 1, len(self._matrices)):
            a, b = max(start, self._starts[number]), min(stop, self._starts[number + 1])
            if self._starts[number] >= stop:
                break
            if a < b:
                yield number, a, b

    def _add(self, start: int, values: Tensor, into: Tensor) -> None:
        small: list[Tensor] = []
        offset = 0
        for number, a, b in self._parts(start, start + values.shape[1]):
            matrix, part = self._matrices[number], values[:, a - start : b - start]
            first = a - self._starts[number]
            if matrix is not None:
                matrix.add(first, part, into)
                continue
            if not small:
                offset = self._offsets[number] + first
            small.append(part)
        if small:
            assert self._small is not None
            self._small.accumulate(offset, small[0] if len(small) == 1 else torch.cat(small, 1), into)

    def _rows(self, start: int, stop: int, vector: Tensor) -> Tensor:
        parts = list(self._parts(start, stop))
        small = [part for part in parts if self._matrices[part[0]] is None]
        joined, taken = vector, 0
        if small:
            assert self._small is not None
            begin, end = (
                self._offsets[number] + at - self._starts[number] for number, at in (small[0][:2], small[-1][::2])
            )
            joined = self._small.spread(begin, end, vector)
        result: list[Tensor] = []
        for number, a, b in parts:
            matrix, first = self._matrices[number], self._starts[number]
            if matrix is None:
                result.append(joined[:, taken : taken + b - a])
                taken += b - a
            else:
                result.append(matrix.rows(a - first, b - first, vector))
        return result[0] if len(result) == 1 else torch.cat(result, 1)


class _Matrix:
    """S_j of one matrix: which frequencies, and the signs."""

    def __init__(self, spec: SketchSpec, number: int, device: torch.device) -> None:
        self.o, self.i = spec.layout[number]
        self.tall, self.wide = fast_length(self.o), fast_length(self.i)  # o', i'
        self.size = s = spec.size
        self.most = max(1, _CHUNK // _per_position(self.o, self.i, s))  # positions in one step

        def stream(purpose: str) -> torch.Generator:
            return seeds.stream(spec.seed, "sketch", "kronecker", purpose, number)

        def signs(count: int, purpose: str) -> Tensor:
            return (1 - 2 * torch.randint(0, 2, (count,), generator=stream(purpose))).to(torch.int8).to(device)

        self._left, self._right = signs(self.o, "left"), signs(self.i, "right")
        self._signs = signs(s, "outputs")
        pairs = _pairs(s)
        k, l = draw_pairs(self.tall, self.wide, pairs, stream("pairs"))
        self._up = int((k >= 0).sum())  # the pairs come in the order of the sign of k
        self._k = k.abs().to(_width(self.tall // 2)).to(device)
        self._l = l.to(_width(self.wide // 2)).to(device)
        # The place of each output among the real and imaginary parts; of an odd number s one part is left out.
        self._places = torch.randperm(2 * pairs, generator=stream("places"))[:s].to(_width(2 * pairs)).to(device)

    def add(self, first: int, values: Tensor, into: Tensor) -> None:
        """into (b, s) += S_j[:, first:first+m] values (b, m)."""
        i, m = self.i, values.shape[1]
        if m == self.o * i and self._fits:
            for some in self._some(len(values)):
                self._add_whole(values[some], into[some])
            return
        row, column = divmod(first, i)
        if column or m < i:
            head = min(i - column, m)
            self._add_rows(row, pad(values[:, :head], (column, i - column - head)), into)
            row, values = row + 1, values[:, head:]
        full = values.shape[1] // i * i
        if full:
            self._add_rows(row, values[:, :full], into)
        if full < values.shape[1]:
            last = values[:, full:]
            self._add_rows(row + full // i, pad(last, (0, i - last.shape[1])), into)

    def add_outer(self, left: Tensor, right: Tensor, into: Tensor) -> None:
        """into (c, ..., s) += the sketch of Σ_τ left_τ right_τᵀ; dimensions of size 1 are broadcast."""
        positions, by_row = right.shape[-2], not left.is_floating_point()
        most = max(1, self.most // math.prod(into.shape[1:-1]))
        step = max(1, most // positions)
        for c in range(0, len(into), step):
            b, a = (x if len(x) == 1 else x[c : c + step] for x in (left, right))
            for t in range(0, positions, most):
                if by_row:
                    x = self._turned(b[..., t : t + most], into.dtype)
                    x *= self._left[b[..., t : t + most]]
                else:
                    x = self._picked(b[..., t : t + most, :], self._left, self.tall, self._k, into.dtype)
                    x = self._conjugated(x)
                self._add_products(x, a[..., t : t + most, :], into[c : c + step])

    def rows(self, first: int, stop: int, vector: Tensor) -> Tensor:
        """Rows first:stop of S_jᵀ applied to vector (b, s)."""
        top, bottom = first // self.i, -(-stop // self.i)
        parts = vector.new_zeros(2 * len(self._k), len(vector))
        parts[self._places.long()] = (vector * self._signs).mT * math.sqrt(2 / self.size)
        z = torch.view_as_complex(parts.view(-1, 2, len(vector)).movedim(1, 2).contiguous())  # (pairs, b)
        out = vector.new_empty(len(vector), bottom - top, self.i)
        if (top, bottom) == (0, self.o) and self._fits:
            for some in self._some(len(vector)):
                y = z.new_zeros(self.tall * (self.wide // 2 + 1), len(z[0, some]))
                y[self._grid()] = z[:, some]
                y = y.mT.reshape(-1, self.tall, self.wide // 2 + 1)
                y[..., 1:-1] *= 0.5  # the inverse counts each inner frequency twice
                x = torch.fft.irfft2(y, s=(self.tall, self.wide), norm="forward")[:, : self.o, : self.i]
                out[some] = x * self._left.to(x.dtype)[:, None]
        else:
            step = max(1, self.most // len(vector))
            for row in range(top, bottom, step):
                h = min(step, bottom - row)
                turned = self._of_rows(row, h, vector.dtype).conj()
                y = z.new_zeros(self.wide // 2 + 1, len(vector), h)
                y.index_add_(0, self._l.int(), z[:, :, None] * turned[:, None])
                y[1:-1] *= 0.5
                x = torch.fft.irfft(y.movedim(0, -1), n=self.wide, norm="forward")
                out[:, row - top : row - top + h] = x[..., : self.i]
        out *= self._right
        return out.flatten(1)[:, first - top * self.i : stop - top * self.i]

    @property
    def _fits(self) -> bool:
        """Whether a whole matrix may be transformed in both dimensions at once."""
        return self.tall * self.wide <= _WHOLE

    def _some(self, rows: int) -> Iterator[slice]:
        """Rows whose whole matrices are transformed in one step."""
        step = max(1, _CHUNK // (2 * self.tall * self.wide))
        return (slice(row, row + step) for row in range(0, rows, step))

    def _grid(self) -> Tensor:
        """The places of the pairs in a transform in two dimensions, (o', i'/2 + 1) complex numbers."""
        k = self._k.long()
        k[self._up :] = self.tall - k[self._up :]
        return k * (self.wide // 2 + 1) + self._l

    def _add_whole(self, values: Tensor, into: Tensor) -> None:
        """Formed matrices (b, o·i)."""
        x = values.view(-1, self.o, self.i) * self._right.to(into.dtype)
        x *= self._left.to(into.dtype)[:, None]
        y = torch.fft.rfft2(x, s=(self.tall, self.wide))
        self._add_pairs(y.flatten(1).index_select(1, self._grid()), into)

    def _add_rows(self, row: int, values: Tensor, into: Tensor) -> None:
        """Formed rows (b, h·i), from `row` on: each is a position whose left factor is 1 at one place."""
        x = values.view(len(values), -1, self.i)
        for t in range(0, x.shape[1], self.most):
            some = x[:, t : t + self.most]
            turned = self._of_rows(row + t, some.shape[1], into.dtype)[:, None]
            step = max(1, self.most // some.shape[1])
            for c in range(0, len(x), step):
                self._add_products(turned, some[c : c + step], into[c : c + step])

    def _add_products(self, left: Tensor, right: Tensor, into: Tensor) -> None:
        """into (..., s) += from left factors (pairs, ..., T) at their frequencies, and right factors (..., T, i)."""
        z = left * self._picked(right, self._right, self.wide, self._l, into.dtype)
        self._add_pairs(z.sum(-1).movedim(0, -1), into)

    def _picked(self, x: Tensor, signs: Tensor, length: int, which: Tensor, dtype: torch.dtype) -> Tensor:
        """(..., T, n) -> (pairs, ..., T): the transform at these frequencies.

        Frequencies come first: then each is picked as a copy of adjacent memory.
        """
        y = torch.fft.rfft(x.to(dtype) * signs.to(dtype), n=length)
        return y.movedim(-1, 0).contiguous().index_select(0, which.int())

    def _turned(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """(..., T) -> (pairs, ..., T): the transform, without signs, of left factors that are 1 at these rows."""
        whole = torch.int32 if self.tall < 1 << 16 else torch.int64  # k times a row is below tall²/2
        k = self._k.to(whole).view(-1, *[1] * rows.ndim)
        angles = (k * rows.to(whole) % self.tall).to(dtype).mul_(-2 * math.pi / self.tall)
        return self._conjugated(torch.complex(angles.cos(), angles.sin()))

    def _of_rows(self, row: int, count: int, dtype: torch.dtype) -> Tensor:
        """(pairs, count): the same for consecutive rows, with signs; most cosines are products of few."""
        few = math.isqrt(count) + 1
        high, low = (
            self._turned(torch.arange(*span, device=self._k.device), dtype)
            for span in ((row, row + count, few), (0, few))
        )
        turned = (high[:, :, None] * low[:, None]).flatten(1)[:, :count]
        return turned * self._left[row : row + count]

    def _conjugated(self, x: Tensor) -> Tensor:
        """The transform of a real vector at -k is the conjugate of that at k; changes x."""
        torch.view_as_real(x)[self._up :, ..., 1].neg_()
        return x

    def _add_pairs(self, z: Tensor, into: Tensor) -> None:
        """into (..., s) += √(2/s) E times the real and imaginary parts of z (..., pairs)."""
        parts = torch.view_as_real(z.contiguous()).flatten(-2).index_select(-1, self._places.int())
        into.add_(parts.mul_(self._signs), alpha=math.sqrt(2 / self.size))


def draw_pairs(tall: int, wide: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Different pairs of frequencies -tall/2 < k <= tall/2 and 0 <= l <= wide/2; first those with k >= 0.

    Every |k| and every l occurs about equally often, frequencies 0 and n/2 half as often: they belong to one real
    row each, all others to two. Left out are the four pairs without an imaginary part, and one of (k, l) and (-k, -l).
    """
    k = l = torch.empty(0, dtype=torch.long)
    while len(k) < count:
        k = torch.cat([k, _tiled(tall, 2 * count, generator)])
        l = torch.cat([l, _tiled(wide, 2 * count, generator).abs()])
        edge = (l == 0) | (l == wide // 2)
        names = torch.where(edge, k.abs(), k % tall) * wide + l
        names[edge & ((k == 0) | (k == tall // 2))] = -1
        different, first = np.unique(names.numpy(), return_index=True)
        kept = torch.from_numpy(np.sort(first[different >= 0]))
        k, l = k[kept], l[kept]
    k, l = k[:count], l[:count]
    order = torch.argsort((k < 0).int(), stable=True)
    return k[order], l[order]


def _tiled(n: int, count: int, generator: torch.Generator) -> Tensor:
    """So many frequencies of a transform of length n: random orders of all |k|, one after the other."""
    orders = [torch.randperm(n // 2, generator=generator) for _ in range(-(-count // (n // 2)))]
    k = torch.cat(orders)[:count]
    up = torch.randint(0, 2, (len(k),), generator=generator)
    return torch.where(k == 0, up * (n // 2), k * (2 * up - 1))


def is_large(o: int, i: int, size: int) -> bool:
    """Whether a matrix has a transform of its own in a sketch of this size."""
    return min(o, i) > 1 and fast_length(o) * fast_length(i) >= _LARGE * size


def _large(spec: SketchSpec) -> list[tuple[int, int]]:
    return [shape for shape in spec.layout if is_large(*shape, spec.size)]


def _joined(spec: SketchSpec) -> SketchSpec | None:
    """The sketch of the tensors that are not large, as one vector; at least s numbers, of which the last never come."""
    count = spec.parameters - sum(o * i for o, i in _large(spec))
    if not count:
        return None
    return BlockSrft.checked(
        SketchSpec("block_srft", max(count, spec.size), spec.size, spec.seed, options={"block": _BLOCK})
    )


def _pairs(size: int) -> int:
    return (size + 1) // 2


def _per_position(o: int, i: int, size: int) -> int:
    """Numbers that one position of factors takes: with signs, transformed, in another order; picked and multiplied."""
    return 3 * (fast_length(o) + fast_length(i)) + 3 * size


def _width(largest: int) -> torch.dtype:
    """The narrowest type for whole numbers up to this, their opposites and complements."""
    return torch.int16 if largest <= torch.iinfo(torch.int16).max else torch.int32
