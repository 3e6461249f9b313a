"""Gradients of single samples: layer by layer where autograd's record allows it, else the general way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from slu.data.batches import Inputs, take
from slu.gradients.general import Block, GeneralGradients
from slu.gradients.layers import Layers, Opened, Pulled
from slu.gradients.network import Network
from slu.gradients.rows import PIECE, ROOM, Meter, Part, Pieces, Rows, handed_out, measured, neighbours, out_of_memory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForwardPass:
    """A batch after its forward pass; it holds the activations, so it should be let go before the next.

    Attributes:
        outputs: (b, t), without history.
        rows: From vectors (b, q, t) to the rows uᵀJ, q of them for each sample, in any order.
        room: Of how many samples, at most, all rows come together for q = t; more where it is not known.
    """

    outputs: Tensor
    rows: Callable[[Tensor], Iterator[Rows]]
    room: int

    def measure(self, vectors: Tensor, meter: Meter) -> Tensor:
        """(..., b, q): what a meter says of every row.

        Cost: q gradients a sample, each measured as it comes and dropped.
        """
        return measured(self.rows(vectors), (vectors.shape[0], vectors.shape[1]), meter)


class PerExampleGradients:
    """Rows of Jacobians of whole batches, never p numbers a sample.

    A batch is passed forward once and back once for each vector, and only as far as the results
    of its layers; from these and the layers' inputs the gradients of single samples are formed
    layer by layer, handed out and dropped. Parameters that go into steps without a formula
    are found the general way in the same pass; where no parameter has one, all are.

    Args:
        network: The function to differentiate; a sample's outputs must not depend on the rest of
            its batch (`Network.check_pointwise`).
        room: How many numbers of gradients may be in flight; at least one row of the largest piece is,
            and of what goes the general way one row in full.
        whole: Whether whoever reads the rows holds their pieces until the last: then no more rows
            come together than the room has place for in full.
        piece: Numbers of gradients that are formed at a time, within the room; as many as a cache holds unless given.

    Cost: a forward pass and q backward passes of the batch, whose activations are held meanwhile,
    and the forming of q·p numbers a sample, a piece of which is held at a time. As many vectors
    are pulled back together as have no more gradients in the layers' results than a piece, at least one. The
    first batch of each shape takes three backward passes more, by which the way is found and checked.

    Numerics: rows are formed in the selection's type, also where the network computes in bfloat16.
    """

    def __init__(self, network: Network, room: int = ROOM, *, whole: bool = False, piece: int | None = None) -> None:
        self._network = network
        self._whole = whole
        self._general = GeneralGradients(network, room)
        self._layers = Layers(network, room)
        self._most: int | None = None
        self._room = room
        self._asked = piece

    @property
    def _piece(self) -> int:
        return min(self._asked or PIECE, self._room)

    def forward(self, inputs: Inputs) -> ForwardPass:
        """A batch after its forward pass, whose outputs may decide which rows are wanted."""
        if self._most is None:
            try:
                opened = self._layers.open(inputs)
                if opened is None:
                    return self._passed(inputs, self._general)
                points, count = opened.outputs.shape
                room = self._piece * points // max(1, count * opened.numbers)
                return ForwardPass(opened.outputs, partial(self._rows, opened, inputs), room)
            except (RuntimeError, MemoryError) as reason:
                if not out_of_memory(reason):
                    raise
        return self._passed(inputs, self._chunked)

    def __call__(self, inputs: Inputs, vectors: Tensor) -> Iterator[Rows]:
        """The rows of a batch for vectors of shape (b, q, t): q of them for each sample, in any order."""
        return self.forward(inputs).rows(vectors)

    def measure(self, inputs: Inputs, vectors: Tensor, meter: Meter) -> Tensor:
        """(..., b, q): what a meter says of every row uᵀJ of a batch, for vectors (b, q, t)."""
        return self.forward(inputs).measure(vectors, meter)

    def _passed(self, inputs: Inputs, rows: Callable[[Inputs, Tensor], Iterator[Rows]]) -> ForwardPass:
        with torch.no_grad():
            outputs = self._network.outputs(inputs)
        return ForwardPass(outputs, partial(rows, inputs), len(outputs))

    def _chunked(self, inputs: Inputs, vectors: Tensor) -> Iterator[Rows]:
        """The rows of a batch whose activations are too many for the memory: of fewer samples at a time."""
        points, start = len(vectors), 0
        self._most = self._most or max(1, points // 2)
        while start < points:
            chunk = slice(start, min(points, start + self._most))
            part = take(inputs, chunk, points)
            try:
                opened = self._layers.open(part)
            except (RuntimeError, MemoryError) as reason:
                if not out_of_memory(reason) or chunk.stop - start == 1:
                    raise
                self._most = (chunk.stop - start) // 2
                log.info("out of memory with %d samples at once; trying fewer", chunk.stop - start)
                continue
            found = self._general(part, vectors[chunk]) if opened is None else self._rows(opened, part, vectors[chunk])
            for rows in found:
                yield Rows(_shifted(rows.samples, start), rows.vectors, rows.pieces)
            start = chunk.stop

    def _rows(self, opened: Opened, inputs: Inputs, vectors: Tensor) -> Iterator[Rows]:
        points, count = vectors.shape[:2]
        selection = self._network.selection
        groups = list(neighbours(selection, lambda segment: opened.splits(segment.name)))
        largest = max(group[-1].stop - group[0].start for group in groups)
        rows = self._piece // largest
        rows = max(1, min(rows, self._room // selection.count) if self._whole else rows)
        # Gradients in the layers' results are held for every vector that is pulled: of many results few come together.
        together = _even(count, max(1, min(rows, self._piece // max(1, opened.numbers))))
        # One place for pieces that can be written to it: fresh memory costs the kernel more than filling it.
        placed = (group[-1].stop - group[0].start for group in groups if len(group) > 1 or group[0].rows is not None)
        size = 0 if self._whole else min(rows, points * together) * max(placed, default=0)
        scratch = torch.empty(size, dtype=selection.dtype, device=selection.device)
        for first in range(0, count, together):
            group = vectors[:, first : first + together]
            most = _even(points, max(1, rows // group.shape[1]))
            pulled = opened.pull(group, ahead=most < points)
            for block in self._blocks(opened, inputs, group, most):
                pieces = self._pieces(groups, pulled, block, scratch)
                yield Rows(block.samples, _shifted(block.vectors, first), pieces)
            del pulled

    def _blocks(self, opened: Opened, inputs: Inputs, vectors: Tensor, most: int) -> Iterator[Block]:
        """Which samples and vectors come together, with what of them is found the general way."""
        if opened.general:
            yield from self._general.blocks(inputs, vectors, opened.general, most)
            return
        points, count = vectors.shape[:2]
        for start in range(0, points, most):
            yield Block(slice(start, min(start + most, points)), slice(0, count), {})

    def _pieces(self, groups: Sequence[Sequence[Part]], pulled: Pulled, block: Block, scratch: Tensor) -> Pieces:
        found, samples, vectors = block.gradients, block.samples, block.vectors

        def gradient(part: Part, into: Tensor | None) -> Tensor:
            if part.name in found:
                return found.pop(part.name)
            return pulled.gradient(part, samples, vectors, into)

        shape = (samples.stop - samples.start, vectors.stop - vectors.start)
        return handed_out(groups, gradient, shape, self._network.selection, scratch)


def _shifted(place: slice, by: int) -> slice:
    return slice(place.start + by, place.stop + by)


def _even(count: int, most: int) -> int:
    """At most so many at a time, about equally many each time."""
    return -(-count // -(-count // most))
