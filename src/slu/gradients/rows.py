"""What gradients of samples are handed out as, whichever way they were found.

A row is the gradient of uᵀ f(x) in the parameters, for one sample x and one vector u over its
outputs: u = e_j gives the j-th row of the Jacobian. Rows are handed out in pieces and dropped;
`Meter` is the seam to whoever measures, sketches or sums them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from slu.parameters import Segment, Selection

ROOM = 64 * 1024 * 1024
"""Numbers of gradients in flight by default (256 MiB in float32); one row always fits."""

PIECE = 1 << 21
"""Numbers of a piece, unless a single row of it is longer: as many as a processor's cache holds."""

_SQUARED = 1 << 18  # numbers squared at a time
_SMALL = 1 << 16  # coordinates below which tensors are handed out together
_BLOCK = 1 << 16  # coordinates of a large tensor that are handed out at once: many samples of them fit a piece

# Rounding adds up through a network, but formulas that are wrong are wrong by far more.
_ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-3}
_COARSE = 0.1

Pieces: TypeAlias = Iterator[tuple[int, Tensor]]
"""(first coordinate, (samples, vectors, m) numbers) until all p coordinates were handed out, in any order.

A piece is gone when the next one is asked for."""


@dataclass(frozen=True)
class Rows:
    """Gradients of a few samples and vectors, in pieces that can be read once and should then be let go."""

    samples: slice
    vectors: slice
    pieces: Pieces

    @property
    def shape(self) -> tuple[int, int]:
        """How many samples and how many vectors."""
        return self.samples.stop - self.samples.start, self.vectors.stop - self.vectors.start


Meter: TypeAlias = Callable[[Pieces, tuple[int, int]], Tensor]
"""Reads the pieces of rows of shape (samples, vectors) once; gives its numbers as (..., samples, vectors)."""


def measured(all_rows: Iterator[Rows], shape: tuple[int, int], meter: Meter) -> Tensor:
    """(..., b, q): what a meter says of rows that together are b samples by q vectors, in whatever order they come."""
    result: Tensor | None = None
    for rows in all_rows:
        found = meter(rows.pieces, rows.shape)
        if result is None:
            result = found.new_zeros(*found.shape[:-2], *shape)
        result[..., rows.samples, rows.vectors] = found
    assert result is not None  # a batch has points, and vectors are at least one a point
    return result


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
        """The part of gradients (samples, vectors, ...) of the whole tensor."""
        return gradients if self.rows is None else gradients[:, :, self.rows]


def handed_out(
    groups: Iterable[Sequence[Part]],
    gradient: Callable[[Part, Tensor | None], Tensor],
    shape: tuple[int, int],
    like: Selection,
    scratch: Tensor,
) -> Pieces:
    """Gradients of tensors as (first coordinate, (samples, vectors, m)), small neighbours in one piece.

    A transform costs a whole block however few numbers of it are given, so biases and norms go
    together with what stands beside them; a large one goes alone and is not copied.

    Args:
        groups: What goes together, as `neighbours` gives it.
        gradient: Gives that of one part and keeps no hold of it. Where a place for it is given,
            (samples, vectors, ...) and uninitialized, it may be written there instead of to new memory.
        shape: How many samples and vectors.
        like: Whose type and device the pieces have.
        scratch: Where pieces are put one after the other, if it is large enough; those for which it
            is not have memory of their own.
    """
    for group in groups:
        start, stop = group[0].start, group[-1].stop
        size = shape[0] * shape[1] * (stop - start)
        place = scratch[:size] if len(scratch) >= size else None
        if len(group) == 1:
            place = None if place is None else place.view(*shape, *group[0].shape)
            joined = gradient(group[0], place).reshape(*shape, -1).to(like.dtype)
        else:
            place = torch.empty(size, dtype=like.dtype, device=like.device) if place is None else place
            joined = place.view(*shape, stop - start)
            for part in group:
                place = joined[..., part.start - start : part.stop - start].view(*shape, *part.shape)
                found = gradient(part, place)
                if found is not place:
                    place.copy_(found.reshape(place.shape))
                del found
        yield start, joined
        del joined


def squared_lengths(values: Tensor) -> Tensor:
    """(...) sums of squares over the last dimension, in little more memory than the values."""
    flat = values.reshape(-1, values.shape[-1])
    total = values.new_zeros(len(flat))
    # A few numbers at a time stay in the cache, and one place for them costs the kernel no fresh pages.
    scratch = values.new_empty(len(flat), max(1, min(flat.shape[1], _SQUARED // max(1, len(flat)))))
    for part in flat.split(scratch.shape[1], 1):
        total += torch.mul(part, part, out=scratch[:, : part.shape[1]]).sum(1)
    return total.view(values.shape[:-1])


def agree(difference: Tensor, length: float, dtypes: Iterable[torch.dtype]) -> bool:
    """Whether a sum of gradients found in two ways differs by rounding alone.

    Args:
        difference: Of the two sums.
        length: The summed lengths of the terms: what rounding is relative to.
        dtypes: That were computed in; the coarsest of them counts.
    """
    rounding = max(_ROUNDING.get(dtype, _COARSE) for dtype in dtypes)
    return float(difference.norm()) <= rounding * length  # never where it is not finite


def neighbours(selection: Selection, splits: Callable[[Segment], bool]) -> Iterator[list[Part]]:
    """What is handed out together: small tensors that stand side by side, and large ones alone.

    Args:
        selection: The tensors.
        splits: Which of the large ones can be had in parts of a few rows, so that the gradients of
            many samples come together.
    """
    group: list[Part] = []
    for segment in selection.segments:
        large = segment.stop - segment.start >= _SMALL
        if group and (large or segment.stop - group[0].start >= _SMALL):
            yield group
            group = []
        if large:
            for part in _parts(segment) if splits(segment) else (_whole(segment),):
                yield [part]
        else:
            group.append(_whole(segment))
    if group:
        yield group


def is_matrix(segment: Segment) -> bool:
    """Whether a tensor has the shape of those whose gradients can mostly be had in parts."""
    return len(segment.shape) == 2


def _whole(segment: Segment) -> Part:
    return Part(segment.name, segment.start, segment.stop, tuple(segment.shape))


def _parts(segment: Segment) -> Iterator[Part]:
    count, *rest = segment.shape
    each = (segment.stop - segment.start) // count
    step = max(1, _BLOCK // each)
    for first in range(0, count, step):
        rows = slice(first, min(first + step, count))
        place = (segment.start + rows.start * each, segment.start + rows.stop * each)
        yield Part(segment.name, *place, (rows.stop - rows.start, *rest), rows)


def out_of_memory(reason: BaseException) -> bool:
    """Whether an exception says that memory ran out; torch raises a plain RuntimeError on the CPU."""
    return isinstance(reason, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(reason)
