"""The chunks of per-example gradients: how many at a time, of which parts of the parameters.

A row is the gradient of uᵀ f(x) in the parameters, for one example x and one vector u over its outputs: u = e_j gives
the j-th row of the Jacobian. A chunk is the rows of some examples for some vectors. It is formed piece by piece: a
piece is its numbers in some of the parameters, and is overwritten or freed when the next is formed. `chunking` decides
the sizes, for the code that forms gradients and for the planner that computes how much memory they take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from slu.parameters import Segment, Selection

MAX_NUMBERS = 64 * 1024 * 1024
"""Numbers of gradients in flight by default (256 MiB in float32); one row always may be."""

PIECE_NUMBERS = 1 << 21
"""Numbers of a piece, unless a single row of it is longer: as many as a processor's cache holds."""

CHECKED_EXAMPLES = 16
"""Examples of the first batch whose gradients are compared with autograd's."""

_SQUARED = 1 << 16  # numbers squared in one sum, whose rounding grows with them
_SMALL = 1 << 16  # coordinates below which tensors are joined to one piece
_BLOCK = 1 << 16  # coordinates of a large tensor in one piece: those of many examples fit


@dataclass(frozen=True)
class Chunking:
    """How many gradients of a batch are formed at a time.

    Attributes:
        batch: Examples of the batch.
        rows: Of a chunk, at most.
        vectors: That are pulled back at a time; the last time fewer may be left.
    """

    batch: int
    rows: int
    vectors: int

    def examples(self, vectors: int) -> int:
        """Examples of a chunk where so many vectors are pulled back."""
        return _evenly(self.batch, self.rows // vectors)

    def formed_ahead(self, vectors: int, tensors: Iterable[int]) -> list[int]:
        """Tensors, of these lengths, whose gradients are formed for the whole batch before its first chunk.

        Only where a chunk has fewer examples: then the smallest tensors would take a call per chunk each. Their
        gradients take up to a piece, however little else may be in flight.
        """
        small: list[int] = []
        if self.examples(vectors) == self.batch:
            return small
        left = PIECE_NUMBERS // (self.batch * vectors)
        for size in sorted(tensors):
            left -= size
            if left < 0:
                break
            small.append(size)
        return small


def chunking(  # noqa: PLR0913 (all are keyword-only)
    *,
    batch: int,
    vectors: int,
    parameters: int,
    longest: int,
    activations: int,
    max_numbers: int = MAX_NUMBERS,
    piece_numbers: int | None = None,
    whole: bool = False,
) -> Chunking:
    """How the gradients of a batch for some vectors per example are divided.

    A chunk has as many rows as fit into a piece of the longest part, at least one. Gradients in the activations are
    held for every vector that is pulled back: of large activations few vectors are pulled back at a time.

    Args:
        batch: Examples.
        vectors: Per example.
        parameters: p.
        longest: Numbers of the longest part of a row that comes in one piece.
        activations: Numbers of the layers' results for the whole batch; 0 where they are not known.
        max_numbers: Of gradients in flight.
        piece_numbers: Of a piece, within the former; PIECE_NUMBERS unless given.
        whole: Whether the reader of a chunk holds all its pieces until the last.

    >>> chunking(batch=128, vectors=10, parameters=44_426, longest=44_426, activations=128 * 4_694)
    Chunking(batch=128, rows=47, vectors=3)
    """
    numbers = piece_size(max_numbers, piece_numbers)
    rows = min(numbers // longest, max_numbers // parameters) if whole else numbers // longest
    rows = max(1, rows)
    return Chunking(batch, rows, _evenly(vectors, min(rows, numbers // max(1, activations))))


def piece_size(max_numbers: int, piece_numbers: int | None = None) -> int:
    """Numbers of a piece of which no single row is longer."""
    return min(piece_numbers or PIECE_NUMBERS, max_numbers)


def check_size(max_numbers: int) -> int:
    """Numbers of gradients that are compared with autograd's at a time, or one row: they come beside the sum."""
    return min(max_numbers, PIECE_NUMBERS // 4)


def examples_within(numbers: int, each: int) -> int:
    """Examples that are taken at a time where each takes so many numbers, at least one."""
    return max(1, numbers // max(1, each))


def vmapped_examples(batch: int, vectors: int, parameters: int, max_numbers: int) -> int:
    """Examples whose whole gradients for all vectors are formed in one call; 0 where those of one are too many.

    q rows per example have q times its activations: at a time not more than the whole batch has.
    """
    return min(max_numbers // max(1, vectors * parameters), max(1, batch // vectors))


def _evenly(count: int, most: int) -> int:
    """At most so many at a time (at least one), about equally many each time."""
    return -(-count // -(-count // max(1, most)))


@dataclass(frozen=True)
class Part:
    """A tensor, or some rows of its first dimension, and their place in the flat vector.

    Attributes:
        name: The tensor's.
        start, stop: Coordinates.
        shape: Of the part.
        rows: Which rows; None for the whole tensor.
    """

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    rows: slice | None = None

    def of(self, gradients: Tensor) -> Tensor:
        """The part of gradients (examples, vectors, ...) of the whole tensor."""
        return gradients if self.rows is None else gradients[:, :, self.rows]


Parts: TypeAlias = Sequence[Part]
"""The parts of one piece."""


def length(parts: Parts) -> int:
    """Coordinates of the parts of a piece."""
    return parts[-1].stop - parts[0].start


def partition(segments: Iterable[Segment], splits: Callable[[Segment], bool]) -> list[Parts]:
    """The parts of each piece: small tensors that are adjacent, and large ones alone.

    Args:
        segments: The tensors that are formed, in order.
        splits: Which of the large ones can be formed a few rows at a time, so that many examples fit into a piece.
    """
    pieces: list[Parts] = []
    group: list[Part] = []
    for segment in segments:
        large = segment.stop - segment.start >= _SMALL
        adjacent = bool(group) and group[-1].stop == segment.start
        if group and (large or not adjacent or segment.stop - group[0].start >= _SMALL):
            pieces.append(group)
            group = []
        whole = Part(segment.name, segment.start, segment.stop, tuple(segment.shape))
        if large:
            pieces += [[part] for part in (_split(segment) if splits(segment) else (whole,))]
        else:
            group.append(whole)
    return [*pieces, group] if group else pieces


def is_matrix(segment: Segment) -> bool:
    """Whether a tensor has the shape of those whose gradients can mostly be formed in parts."""
    return len(segment.shape) == 2


def _split(segment: Segment) -> Iterator[Part]:
    count, *rest = segment.shape
    each = (segment.stop - segment.start) // count
    step = max(1, _BLOCK // each)
    for first in range(0, count, step):
        rows = slice(first, min(first + step, count))
        place = (segment.start + rows.start * each, segment.start + rows.stop * each)
        yield Part(segment.name, *place, (rows.stop - rows.start, *rest), rows)


Pieces: TypeAlias = Iterator[tuple[int, Tensor]]
"""(first coordinate, (examples, vectors, m) numbers), all coordinates that are formed, in any order.

A piece is valid until the next one is formed."""


class FactorSize(NamedTuple):
    """Of the factors of one gradient.

    Attributes:
        positions: T.
        words: Whether the left factors are rows of a table by their number, as of an embedding.
        numbers: That they are.
    """

    positions: int
    words: bool
    numbers: int

    @classmethod
    def of(cls, shape: tuple[int, int], positions: int, words: bool = False) -> FactorSize:
        """From the shape of the matrix."""
        return cls(positions, words, positions * (shape[1] + (1 if words else shape[0])))


@dataclass(frozen=True)
class Factors:
    """Gradients of matrices (o, i) that are not formed: Σ_τ left[c, g, τ] right[c, g, τ]ᵀ over positions τ.

    Attributes:
        start: The first coordinate of the matrix in the flat vector.
        left: (c, g or 1, T, o); of a table of words (c, 1, T) whole numbers, the row that each position is of.
        right: (c, g or 1, T, i).
    """

    start: int
    left: Tensor
    right: Tensor

    @property
    def of_words(self) -> bool:
        """Whether left has rows of a table instead of vectors."""
        return not self.left.is_floating_point()

    def squared_lengths(self) -> Tensor:
        """(c, g) ‖G‖² = Σ_ττ' (l_τ · l_τ') (r_τ · r_τ').

        Cost: T² (o + i) operations in float64 per gradient, or T o i to form it where these are about as few; o + i
        for one position.

        Numerics: the terms cancel where the gradients of positions do, as over inputs far from zero; hence float64.
        """
        if self.left.shape[2] == 1:
            right = self.right.square().sum((2, 3))
            return right if self.of_words else right * self.left.square().sum((2, 3))
        positions, o, i = self.left.shape[2], self.left.shape[-1], self.right.shape[-1]
        if not self.of_words and 2 * positions * (o + i) > o * i:
            return squared_lengths((self.left.mT @ self.right).flatten(2))
        right = self.right.double()
        rights = right @ right.mT
        if self.of_words:
            rights.masked_fill_(self.left[..., None] != self.left[..., None, :], 0.0)  # a factor would be copied
        else:
            left = self.left.double()
            rights = rights * (left @ left.mT)
        return rights.sum((2, 3)).clamp_(min=0).to(self.right.dtype)


@dataclass(frozen=True)
class Rows:
    """A chunk: gradients of a few examples for a few vectors, in pieces that can be read once.

    Attributes:
        examples, vectors: Which.
        pieces: The coordinates that are formed.
        factors: The matrices that are not; none unless they were asked for.
    """

    examples: slice
    vectors: slice
    pieces: Pieces
    factors: Iterable[Factors] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """How many examples and how many vectors."""
        return size_of(self.examples, self.vectors)

    def times(self, lengths: Tensor) -> Rows:
        """The rows multiplied by numbers (examples, vectors, 1)."""
        pieces = ((start, values * lengths.to(values.dtype)) for start, values in self.pieces)
        factors = (
            Factors(each.start, each.left, each.right * lengths[..., None].to(each.right.dtype))
            for each in self.factors
        )
        return Rows(self.examples, self.vectors, pieces, factors)


Block: TypeAlias = tuple[slice, slice, dict[str, Tensor]]
"""Examples and vectors of a chunk, and its gradients (examples, vectors, ...) in the parameters without a formula."""


def size_of(examples: slice, vectors: slice) -> tuple[int, int]:
    """How many examples and how many vectors."""
    return examples.stop - examples.start, vectors.stop - vectors.start


Meter: TypeAlias = Callable[[Rows], Tensor]
"""Reads the pieces of a chunk once; gives its numbers as (..., examples, vectors)."""


def measure_chunks(chunks: Iterator[Rows], shape: tuple[int, int], meter: Meter) -> Tensor:
    """(..., b, q): a meter's values for the rows of b examples for q vectors, whatever the order of the chunks."""
    result: Tensor | None = None
    for rows in chunks:
        measured = meter(rows)
        if result is None:
            result = measured.new_zeros(*measured.shape[:-2], *shape)
        result[..., rows.examples, rows.vectors] = measured
        del rows  # or its gradients in the activations would stay in memory while the next are computed
    assert result is not None  # a batch has points, and vectors are at least one per point
    return result


def form_pieces(
    pieces: Iterable[Parts],
    gradient: Callable[[Part, Tensor | None], Tensor],
    shape: tuple[int, int],
    like: Selection,
    scratch: Tensor,
) -> Pieces:
    """The pieces of a chunk, each formed when it is asked for.

    A transform costs a whole block however few numbers of it are given, so biases and norms are
    joined with their neighbours; a large tensor is a piece of its own and is not copied.

    Args:
        pieces: As `partition` gives them.
        gradient: Gives that of one part and keeps no reference to it. Where a place for it is given,
            (examples, vectors, ...) and uninitialized, it may be written there instead of to new memory.
        shape: How many examples and vectors.
        like: Has the type and device of the pieces.
        scratch: Where pieces are put one after the other, if it is large enough; those for which it
            is not have memory of their own.
    """
    for parts in pieces:
        start = parts[0].start
        size = shape[0] * shape[1] * length(parts)
        place = scratch[:size] if len(scratch) >= size else None
        if len(parts) == 1:
            place = None if place is None else place.view(*shape, *parts[0].shape)
            joined = gradient(parts[0], place).reshape(*shape, -1).to(like.dtype)
        else:
            place = torch.empty(size, dtype=like.dtype, device=like.device) if place is None else place
            joined = place.view(*shape, length(parts))
            for part in parts:
                place = joined[..., part.start - start : part.stop - start].view(*shape, *part.shape)
                formed = gradient(part, place)
                if formed is not place:
                    place.copy_(formed.reshape(place.shape))
                del formed
        yield start, joined
        del joined


def squared_lengths(values: Tensor) -> Tensor:
    """(...) sums of squares over the last dimension, without a copy of the values."""
    total, *parts = (torch.linalg.vector_norm(part, dim=-1).square_() for part in values.split(_SQUARED, -1))
    return sum(parts, total)
