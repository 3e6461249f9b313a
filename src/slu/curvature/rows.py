"""What gradients of samples are handed out as, whichever way they were found.

A row is the gradient of uᵀ f(x) in the parameters, for one sample x and one vector u over its
outputs: u = e_j gives the j-th row of the Jacobian. Rows are handed out in pieces and dropped;
`Meter` is the seam to whoever measures, sketches or sums them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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

# Rounding adds up through a network, but formulas that are wrong are wrong by far more.
_ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-3}
_COARSE = 0.1

Pieces: TypeAlias = Iterator[tuple[int, Tensor]]
"""(first coordinate, (samples, vectors, m) numbers) until all p coordinates were handed out, in any order."""


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


def handed_out(
    selection: Selection, gradient: Callable[[Segment, Tensor | None], Tensor], shape: tuple[int, int]
) -> Pieces:
    """Gradients of tensors as (first coordinate, (samples, vectors, m)), small neighbours in one piece.

    A transform costs a whole block however few numbers of it are given, so biases and norms go
    together with what stands beside them; a large one goes alone and is not copied.

    Args:
        selection: Which tensors, in which order.
        gradient: Gives that of one tensor and keeps no hold of it. Where a place for it is given,
            (samples, vectors, ...) and uninitialized, it may be written there instead of to new memory.
        shape: How many samples and vectors.
    """
    for group in neighbours(selection):
        start = group[0].start
        if len(group) == 1:
            joined = gradient(group[0], None).reshape(*shape, -1).to(selection.dtype)
        else:
            joined = torch.empty(*shape, group[-1].stop - start, dtype=selection.dtype, device=selection.device)
            for segment in group:
                place = joined[..., segment.start - start : segment.stop - start].view(*shape, *segment.shape)
                found = gradient(segment, place)
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


def neighbours(selection: Selection) -> Iterator[list[Segment]]:
    """The segments in groups that are handed out together."""
    group: list[Segment] = []
    for segment in selection.segments:
        large = segment.stop - segment.start >= _SMALL
        if group and (large or segment.stop - group[0].start >= _SMALL):
            yield group
            group = []
        group.append(segment)
        if large:
            yield group
            group = []
    if group:
        yield group


def out_of_memory(reason: BaseException) -> bool:
    """Whether an exception says that memory ran out; torch raises a plain RuntimeError on the CPU."""
    return isinstance(reason, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(reason)
