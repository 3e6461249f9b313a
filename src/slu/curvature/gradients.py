"""Gradients of single samples, whatever the model: the general way.

A row is the gradient of uᵀ f(x) in the parameters, for one sample x and one vector u over its
outputs: u = e_j gives the j-th row of the Jacobian. Rows are handed out in pieces and dropped;
`Meter` is the seam to whoever measures, sketches or sums them.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.func import vjp, vmap

from slu.curvature.batches import Inputs, counts_points, map_tensors, take, tensors
from slu.curvature.linearize import pull_back
from slu.curvature.network import Network
from slu.parameters import Segment, Selection

log = logging.getLogger(__name__)

ROOM = 64 * 1024 * 1024
"""Numbers of gradients in flight by default (256 MiB in float32); one row always fits."""


_SQUARED = 1 << 20  # numbers squared at a time
_SMALL = 1 << 16  # coordinates below which tensors are handed out together

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


class SampleGradients:
    """Rows of Jacobians, many at once where memory and the model allow, one by one where not.

    `vmap` differentiates several samples in one call. It cannot pass control flow that depends
    on data, activation checkpointing or custom autograd functions, and it holds t·p numbers a
    sample: where it fails, or where those exceed the room, samples go one by one with one
    backward pass a row.

    Args:
        network: The function to differentiate.
        room: How many numbers of gradients may be in flight; at least p are.

    Cost: t backward passes a sample in either way. vmap holds c·t·p numbers for c samples at
    once, with c·t at most the batch (or t, for one sample), so that the activations stay those
    of one batch; the loop holds p.
    """

    def __init__(self, network: Network, room: int = ROOM) -> None:
        self._network = network
        self._room = room
        self._vmap = True

    def __call__(self, inputs: Inputs, vectors: Tensor) -> Iterator[Rows]:
        """The rows of a batch for vectors of shape (b, q, t): q of them for each sample."""
        points, count = vectors.shape[:2]
        start = 0
        while start < points:
            # q rows a sample have q times its activations: together not more than the whole batch has.
            together = min(self._room // (count * self._network.selection.count), max(1, points // count))
            if not self._vmap or together < 1:
                yield from self._one_by_one(inputs, vectors, start)
                return
            chunk = slice(start, min(start + together, points))
            try:
                gradients = self._together(inputs, vectors, chunk)
            except RuntimeError as reason:
                self._retreat(reason, chunk.stop - start, count)
                continue
            yield self._rows(chunk, slice(0, count), gradients)
            start = chunk.stop

    def measure(self, inputs: Inputs, vectors: Tensor, meter: Meter) -> Tensor:
        """(..., b, q): what a meter says of every row uᵀJ of a batch, for vectors (b, q, t).

        Cost: q gradients a sample, each measured as it comes and dropped.
        """
        selection = self._network.selection
        result: Tensor | None = None
        for rows in self(inputs, vectors):
            found = meter(rows.pieces, rows.shape)
            if result is None:
                shape = (*found.shape[:-2], *vectors.shape[:2])
                result = torch.zeros(shape, dtype=found.dtype, device=selection.device)
            result[..., rows.samples, rows.vectors] = found
        assert result is not None  # a batch has points, and vectors are at least one a point
        return result

    def _rows(self, samples: slice, vectors: slice, gradients: dict[str, Tensor]) -> Rows:
        shape = (samples.stop - samples.start, vectors.stop - vectors.start)
        return Rows(samples, vectors, _pieces(self._network.selection, gradients, shape))

    def _retreat(self, reason: RuntimeError, tried: int, count: int) -> None:
        if out_of_memory(reason):
            self._room = tried // 2 * count * self._network.selection.count
            log.info("out of memory with %d samples at once; trying fewer", tried)
        else:
            self._vmap = False
            log.info("vmap cannot differentiate this model (%s); samples go one by one", reason)

    def _together(self, inputs: Inputs, vectors: Tensor, chunk: slice) -> dict[str, Tensor]:
        parameters = self._network.parameters()
        points = len(vectors)
        of_points = [tensor[chunk] for tensor in tensors(inputs) if counts_points(tensor, points)]

        def rows(of_sample: Tensor, *sample: Tensor) -> dict[str, Tensor]:
            left = iter(sample)
            alone = map_tensors(
                lambda tensor: next(left).unsqueeze(0) if counts_points(tensor, points) else tensor, inputs
            )
            outputs, pullback, *_ = vjp(lambda values: self._network.outputs(alone, values)[0], parameters)
            return vmap(lambda vector: pullback(vector)[0])(of_sample.to(outputs.dtype))

        with warnings.catch_warnings():
            # Operations without a batching rule run in a loop inside vmap: slower, not wrong.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return vmap(rows)(vectors[chunk], *of_points)

    def _one_by_one(self, inputs: Inputs, vectors: Tensor, start: int) -> Iterator[Rows]:
        points, count = vectors.shape[:2]
        for index in range(start, points):
            leaves = {name: value.requires_grad_() for name, value in self._network.parameters().items()}
            one = slice(index, index + 1)
            outputs = self._network.outputs(take(inputs, one, points), leaves)
            for place in range(count):
                found = pull_back(outputs, leaves, vectors[one, place], retain_graph=place + 1 < count)
                yield self._rows(one, slice(place, place + 1), found)


def _pieces(selection: Selection, gradients: dict[str, Tensor], shape: tuple[int, int]) -> Pieces:
    """The gradients as (first coordinate, (samples, vectors, m)), small neighbours in one piece.

    A transform costs a whole block however few numbers of it are given, so biases and norms go
    together with what stands beside them; a large one goes alone and is not copied. Each
    gradient is let go once handed out.
    """
    for group in neighbours(selection):
        held = [gradients.pop(segment.name).reshape(*shape, -1).to(selection.dtype) for segment in group]
        joined = held[0] if len(held) == 1 else torch.cat(held, -1)
        held.clear()
        yield group[0].start, joined
        del joined


def squared_lengths(values: Tensor) -> Tensor:
    """(...) sums of squares over the last dimension, without a copy of all of them."""
    total = values.new_zeros(values.shape[:-1])
    for part in values.split(max(1, _SQUARED // max(1, total.numel())), -1):
        total += part.square().sum(-1)
    return total


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
