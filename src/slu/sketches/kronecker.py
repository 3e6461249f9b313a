"""A Fourier transform of every matrix, sampled at pairs of frequencies: takes gradients that were never formed.

The transform of an outer product b aᵀ in two dimensions is the outer product of the transforms of b and a, so s of its
numbers need only these two: the Kronecker fast Johnson-Lindenstrauss transform (Jin, Kolda and Ward).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from slu.errors import SettingError
from slu.sketches.base import PIECE, Sketch, SketchSpec
from slu.sketches.fourier_pairs import CHUNK, WHOLE, FourierPairs, per_position, state_bytes, terms
from slu.sketches.srft import BlockSrft, fast_length

_LARGE = 4  # a matrix of at least this many times s padded numbers has a transform of its own
_BLOCK = 4096  # of the joined vector: one bias costs the transform of a whole block

# Nanoseconds on one core, of which only the ratios matter (see `Kronecker.prefers_factors_of`).
_TRANSFORM, _PICK, _GRAM = 0.35, 0.9, 0.027
_FORM, _FORMED = 0.025, 3.0
_TURN, _SAME, _WORDS_FORMED = 4.1, (6.0, 0.035), (4.0, 12.0)


@final
class Kronecker(Sketch):
    """S = [S₁ S₂ …] over the tensors of the spec's `layout`, each seen as a matrix G (o, i).

    A large matrix: S_j vec G = √(2/(q s)) E R (W_o D_o G D_i W_i), with W the complex Fourier transforms of fast
    lengths o' >= o and i' >= i, D random signs, R the real and imaginary parts at q s/2 different pairs of frequencies
    (k, l), E the sum of q of these parts each, in random order with random signs. The rows of S_j are orthogonal: they
    are sums of different rows of a real transform in two dimensions. All |k| and all l occur equally often, up to a
    few, or at most once; q is min(o', i')/s rounded, 1 to 4. With this a gradient b aᵀ of one position has the error
    of a Gaussian sketch, or up to 1.4 times that where a side is far longer than q s: products of two real numbers,
    drawn at random, would have twice. Large is a matrix with both dimensions above 1 and o' i' >= 4 s.

    All other tensors (biases, norms, small matrices) are joined to one vector, which goes through "block_srft".

    Cost: o + i + 5 q s bytes per large matrix (9 q s if a length is above 32,767), and the joined vector's state.
    T positions of a factored gradient: T (o log o + i log i + q s). A formed matrix: the transform in two dimensions,
    or i log i + q s per row.
    Numerics: FFT in the dtype of `into`; the angles of rows that are given by number are reduced as whole numbers.
    """

    def __init__(self, spec: SketchSpec, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(spec, device, dtype)
        self._starts, self._offsets = [0], [0]  # of each tensor in the flat and in the joined vector
        self._matrices: list[FourierPairs | None] = []
        size, seed = self.spec.size, self.spec.seed
        for number, (o, i) in enumerate(self.spec.layout):
            large = is_large(o, i, size)
            self._matrices.append(FourierPairs((o, i), size, seed, number, device) if large else None)
            self._starts.append(self._starts[-1] + o * i)
            self._offsets.append(self._offsets[-1] + (0 if large else o * i))
        joined = _joined(self.spec)
        self._small = None if joined is None else BlockSrft(joined, device, dtype)

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
        state = sum(state_bytes(shape, spec.size) for shape in _large(spec))
        joined = _joined(spec)
        return state + (0 if joined is None else BlockSrft.state_bytes_of(joined, bytes_each))

    @classmethod
    def scratch_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:
        """A whole matrix with signs, padded, and its transform, or a chunk; or what the joined vector takes."""
        numbers = 0
        for shape in _large(spec):
            padded = math.prod(map(fast_length, shape))
            numbers = max(numbers, 4 * padded if padded <= WHOLE else 0, per_position(shape, spec.size), CHUNK)
        joined = _joined(spec)
        return max(numbers * bytes_each, 0 if joined is None else BlockSrft.scratch_bytes_of(joined, bytes_each))

    @classmethod
    def scratch_of_rows(cls, spec: SketchSpec, rows: int, unformed: Collection[int], bytes_each: int = 4) -> int:
        """Bytes it takes to sketch several formed rows, if some tensors, by their number, come as factors instead."""
        numbers, joined = 0, _joined(spec)
        for number, (o, i) in enumerate(spec.layout):
            if is_large(o, i, spec.size) and number not in unformed:
                padded = fast_length(o) * fast_length(i)
                numbers = max(numbers, min(rows * 4 * padded, max(2 * CHUNK, 4 * padded)) if padded <= WHOLE else CHUNK)
        if joined is not None:
            one = BlockSrft.scratch_bytes_of(joined)  # of five numbers per number, with signs and in any order
            numbers = max(numbers, min(rows * one // 4, 8 * PIECE))
        return numbers * bytes_each

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
        shape = (*np.broadcast_shapes(*lead), s)  # torch's own takes as long as a transform
        if into.shape != shape:
            raise SettingError(
                f"`into` has shape {tuple(into.shape)}; factors of shapes {tuple(left.shape)} and "
                f"{tuple(right.shape)} need {shape}"
            )
        left = left.long() if by_row else left
        matrix = self._matrices[number]
        if matrix is None:  # small: formed, it is a vector or less than 4 s numbers
            left = one_hot(left, o) if by_row else left
            formed = left.to(into.dtype).mT @ right.to(into.dtype)
            self.accumulate(start, formed.expand(*into.shape[:-1], o, i).flatten(-2), into)
            return
        dims = max(1, into.ndim - 1)  # at least one leading dimension, so that there is one to cut
        left = left.view((1,) * (dims - len(lead[0])) + tuple(left.shape))
        right = right.view((1,) * (dims - len(lead[1])) + tuple(right.shape))
        matrix.add_outer(left, right, into if into.ndim > 1 else into[None])

    @classmethod
    def prefers_factors_of(cls, spec: SketchSpec, number: int, positions: int, words: bool = False) -> bool:
        """Whether a gradient of T positions costs less from its factors than formed; its exact norm counts as well.

        From factors: T (0.35 (o log₂ o + i log₂ i) + 0.9 q s) + 0.027 T² (o + i), the last for the norm from the Gram
        matrices of the positions. Formed: o i (3 + 0.025 T). The constants are nanoseconds on one core. Over T from 1
        to 1024, matrices from (10, 512) to (512, 4608), s of 1000 and 4000, they give each time above 0.1 ms within
        20 %, up to a matrix of 2²⁰ numbers; beyond that forming takes up to twice as long.
        Words, rows of a table by their number, have no left factor that is transformed: T (0.35 i log₂ i + 5 q s) +
        T² (6 + 0.035 i). Formed: 4 o i up to 2²⁰ numbers, 12 o i beyond. On tables from (300, 64) to (30000, 384), T of
        16 to 512, the faster way is chosen, or one that takes less than twice as long.
        Tensors of the joined vector are formed: they are small.
        """
        o, i = spec.layout[number]
        if not is_large(o, i, spec.size):
            return False
        picked = terms((o, i), spec.size) * spec.size
        if words:
            same, of_each = _SAME
            factors = _TRANSFORM * i * math.log2(i) + (_PICK + _TURN) * picked + positions * (same + of_each * i)
            return positions * factors < o * i * _WORDS_FORMED[o * i > WHOLE]
        factors = _TRANSFORM * (o * math.log2(o) + i * math.log2(i)) + _PICK * picked + _GRAM * positions * (o + i)
        return positions * factors < o * i * (_FORMED + _FORM * positions)

    def prefers_factors(self, start: int, positions: int, words: bool = False) -> bool:
        """As `prefers_factors_of`, for the tensor that begins at a coordinate."""
        return self.prefers_factors_of(self.spec, self._number_of(start), positions, words)

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
            if b - first > WHOLE:
                b = min(b, first + ((a - first) // i + max(1, WHOLE // i)) * i)
            while number + 2 < len(self._starts) and self._starts[number + 2] - a <= WHOLE:
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

    def accumulate_pieces(self, pieces: Sequence[tuple[int, Tensor]], into: Tensor) -> None:
        """As of any sketch; one transform for what is adjacent in the joined vector, though matrices lie between."""
        flat = into.view(-1, self.spec.size)
        self._add_all([(start, values.reshape(len(flat), -1)) for start, values in pieces], flat)

    def _add(self, start: int, values: Tensor, into: Tensor) -> None:
        self._add_all([(start, values)], into)

    def _add_all(self, pieces: Sequence[tuple[int, Tensor]], into: Tensor) -> None:
        small: list[tuple[int, Tensor]] = []  # with the place in the joined vector
        for start, values in pieces:
            begin = -1  # of small tensors that are adjacent in the piece, which are then not copied
            for number, a, b in self._parts(start, start + values.shape[1]):
                matrix, first = self._matrices[number], a - self._starts[number]
                if matrix is not None:
                    matrix.add(first, values[:, a - start : b - start], into)
                    begin = -1
                elif begin < 0:
                    begin = a
                    small.append((self._offsets[number] + first, values[:, a - start : b - start]))
                else:
                    small[-1] = (small[-1][0], values[:, begin - start : b - start])
        while small:
            assert self._small is not None
            adjacent = [small[0][1]]
            offset, stop = small[0][0], small[0][0] + adjacent[0].shape[1]
            while len(adjacent) < len(small) and small[len(adjacent)][0] == stop:
                adjacent.append(small[len(adjacent)][1])
                stop += adjacent[-1].shape[1]
            del small[: len(adjacent)]
            self._small.accumulate(offset, adjacent[0] if len(adjacent) == 1 else torch.cat(adjacent, 1), into)

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
