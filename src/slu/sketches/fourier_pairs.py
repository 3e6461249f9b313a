"""One matrix of the sketch "kronecker": its Fourier transform in two dimensions, sampled at pairs of frequencies."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from slu import seeds
from slu.sketches.srft import fast_length

WHOLE = 1 << 20
"""Numbers up to which a formed matrix is transformed in both dimensions at once."""

CHUNK = 1 << 20
"""Numbers of factors, transforms and products in one step: 4 MB in float32."""

_MOST_TERMS = 4


class FourierPairs:
    """S_j = √(2/(q s)) E R (W_o D_o · D_i W_i) of a matrix (o, i); the letters are those of `Kronecker`.

    Cost: o + i signs of a byte, q s/2 pairs, q s places and signs of terms. A formed matrix is transformed in both
    dimensions at once, about 3 ns per number, or, where that would take too much memory or only some rows are given,
    row by row, at q s products each.
    Numerics: the transform of a row that is given by its number is a cosine of 2π/o' times a whole number that is
    reduced first, so it is exact to rounding for tables of any length.
    """

    def __init__(self, shape: tuple[int, int], size: int, seed: int, number: int, device: torch.device) -> None:
        self.o, self.i = shape
        self.tall, self.wide = fast_length(self.o), fast_length(self.i)  # o', i'
        self.size = s = size
        self.terms = terms(shape, s)
        self.most = max(1, CHUNK // per_position(shape, s))  # positions in one step
        self.most_rows = max(1, CHUNK // (3 * (self.wide + s * self.terms)))  # where no left factor is transformed

        def stream(purpose: str) -> torch.Generator:
            return seeds.stream(seed, "sketch", "kronecker", purpose, number)

        def signs(count: int, purpose: str) -> Tensor:
            return (1 - 2 * torch.randint(0, 2, (count,), generator=stream(purpose))).to(torch.int8).to(device)

        self._left, self._right = signs(self.o, "left"), signs(self.i, "right")
        self._signs = signs(self.terms * s, "outputs")
        pairs = (self.terms * s + 1) // 2
        k, l = draw_pairs(self.tall, self.wide, pairs, stream("pairs"))
        self._up = int((k >= 0).sum())  # the pairs come in the order of the sign of k
        self._k = k.abs().to(_width(self.tall // 2)).to(device)
        self._l = l.to(_width(self.wide // 2)).to(device)
        # The place of each term among the real and imaginary parts; of an odd number one part is left out.
        places = torch.randperm(2 * pairs, generator=stream("places"))[: self.terms * s]
        self._places = places.to(_width(2 * pairs)).to(device)
        self._scale = math.sqrt(2 / (self.terms * s))

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
        most = max(1, (self.most_rows if by_row else self.most) // math.prod(into.shape[1:-1]))
        step = max(1, most // max(1, positions))
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
        parts[self._places.long()] = (vector.repeat(1, self.terms) * self._signs).mT * self._scale
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
            step = max(1, self.most_rows // len(vector))
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
        return self.tall * self.wide <= WHOLE

    def _some(self, rows: int) -> Iterator[slice]:
        """Rows whose whole matrices are transformed in one step."""
        step = max(1, CHUNK // (2 * self.tall * self.wide))
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
        for t in range(0, x.shape[1], self.most_rows):
            some = x[:, t : t + self.most_rows]
            turned = self._of_rows(row + t, some.shape[1], into.dtype)[:, None]
            step = max(1, self.most_rows // some.shape[1])
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
        parts = parts.mul_(self._signs).unflatten(-1, (self.terms, self.size))
        into.add_(parts.sum(-2) if self.terms > 1 else parts.squeeze(-2), alpha=self._scale)


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


def terms(shape: tuple[int, int], size: int) -> int:
    """q, the parts of the transform that are added to one output.

    As many as let all frequencies of the shorter side occur, up to four. They cost less than the transforms: where
    there are several, both are longer than s. For one position the variance of ‖S g‖² in those of a Gaussian matrix is
    1 + (u + v)/q, with u and v the shares of frequencies of either side that do not occur.
    """
    return max(1, min(_MOST_TERMS, (2 * min(map(fast_length, shape)) + size) // (2 * size)))


def state_bytes(shape: tuple[int, int], size: int) -> int:
    """Of one matrix, before anything is built."""
    parts = terms(shape, size) * size
    pairs = (parts + 1) // 2
    widths = (_width(fast_length(n) // 2).itemsize for n in shape)
    return sum(shape) + pairs * sum(widths) + parts * (1 + _width(2 * pairs).itemsize)


def per_position(shape: tuple[int, int], size: int) -> int:
    """Numbers that one position of factors takes: with signs, transformed, in another order; picked and multiplied."""
    return 3 * (sum(map(fast_length, shape)) + terms(shape, size) * size)


def _width(largest: int) -> torch.dtype:
    """The narrowest type for whole numbers up to this."""
    return torch.int16 if largest <= torch.iinfo(torch.int16).max else torch.int32
