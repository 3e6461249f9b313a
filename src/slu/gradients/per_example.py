"""Per-example gradients: layer by layer where autograd's record allows it, else by the general fallback."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from slu.data.structure import Inputs, take
from slu.errors import out_of_memory
from slu.gradients.chunks import (
    MAX_NUMBERS,
    Block,
    FactorSize,
    Meter,
    Part,
    Parts,
    Pieces,
    Rows,
    chunking,
    form_pieces,
    length,
    measure_chunks,
    partition,
    piece_size,
    size_of,
)
from slu.gradients.general import GeneralGradients
from slu.gradients.layers import Collector, LayerBackward, LayerForward
from slu.gradients.network import Network
from slu.parameters import Segment

Unformed: TypeAlias = Callable[[int, FactorSize], bool]
"""From a parameter's first coordinate and the size of its factors to whether its gradients are left as factors."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForwardPass:
    """A batch after its forward pass; it holds the activations, so it should be freed before the next.

    Attributes:
        outputs: (b, t), without history.
        rows: From vectors (b, q, t) to the rows uᵀJ, q of them for each example, chunk by chunk in any order.
        max_examples: Of how many examples, at most, all rows come in one chunk for q = t; more where it is not known.
    """

    outputs: Tensor
    rows: Callable[[Tensor], Iterator[Rows]]
    max_examples: int

    def measure(self, vectors: Tensor, meter: Meter) -> Tensor:
        """(..., b, q): a meter's values for every row.

        Cost: q gradients per example, each measured as it is formed and dropped.
        """
        return measure_chunks(self.rows(vectors), (vectors.shape[0], vectors.shape[1]), meter)


class PerExampleGradients:
    """Rows of Jacobians of whole batches, without ever holding p numbers per example.

    A batch is passed forward once and back once per vector, and only as far as the results of its layers; from
    these and the layers' inputs the per-example gradients are formed layer by layer, read and dropped. Gradients
    in parameters of steps without a formula come from the general fallback.

    Args:
        network: The function to differentiate; an example's outputs must not depend on the rest of
            its batch (`Network.check_pointwise`).
        max_numbers: How many numbers of gradients may be in flight; at least one row of the largest piece is,
            and of what comes from the general fallback one row in full.
        whole: Whether the reader of the rows holds their pieces until the last: then a chunk has no more rows
            than these numbers hold in full.
        piece: Numbers of a piece, within these numbers; as many as a cache holds unless given.
        unformed: Which gradients the reader takes as factors; by default all are formed.

    Cost: a forward pass and q backward passes of the batch, whose activations are held meanwhile,
    and the forming of q·p numbers per example, a piece of which is held at a time (`chunks.chunking`). The
    first batch of each shape takes three backward passes more, by which formulas are chosen and verified.

    Numerics: rows are formed in the selection's type, also where the network computes in bfloat16.
    """

    def __init__(
        self,
        network: Network,
        max_numbers: int = MAX_NUMBERS,
        *,
        whole: bool = False,
        piece: int | None = None,
        unformed: Unformed | None = None,
    ) -> None:
        self._network = network
        self._whole = whole
        self._collector = Collector(network, max_numbers)
        self.max_numbers = max_numbers
        self._piece = piece
        self._unformed = unformed
        self._max_examples: int | None = None

    @cached_property
    def _general(self) -> GeneralGradients:
        return GeneralGradients(self._network, self.max_numbers)

    def forward(self, inputs: Inputs, watch: AbstractContextManager[Any] | None = None) -> ForwardPass:
        """A batch after its forward pass, whose outputs may decide which rows are wanted.

        Args:
            inputs: The batch.
            watch: Entered while the model is called on it, as of `Network.outputs`.
        """
        if self._max_examples is None:
            try:
                layers = self._collector.forward(inputs, watch)
                if layers is None:
                    return self._outputs_alone(inputs, self._general, watch)
                examples, count = layers.outputs.shape
                at_once = piece_size(self.max_numbers, self._piece) * examples // max(1, count * layers.activations)
                return ForwardPass(layers.outputs, partial(self._rows, layers, inputs), at_once)
            except (RuntimeError, MemoryError) as reason:
                if not out_of_memory(reason):
                    raise
        return self._outputs_alone(inputs, self._rows_of_fewer, watch)

    def __call__(self, inputs: Inputs, vectors: Tensor) -> Iterator[Rows]:
        """The rows of a batch for vectors of shape (b, q, t): q of them for each example, in any order."""
        return self.forward(inputs).rows(vectors)

    def measure(self, inputs: Inputs, vectors: Tensor, meter: Meter) -> Tensor:
        """(..., b, q): a meter's values for every row uᵀJ of a batch, for vectors (b, q, t)."""
        return self.forward(inputs).measure(vectors, meter)

    def _outputs_alone(
        self,
        inputs: Inputs,
        rows: Callable[[Inputs, Tensor], Iterator[Rows]],
        watch: AbstractContextManager[Any] | None,
    ) -> ForwardPass:
        with torch.no_grad():
            outputs = self._network.outputs(inputs, watch=watch)
        return ForwardPass(outputs, partial(rows, inputs), len(outputs))

    def _rows_of_fewer(self, inputs: Inputs, vectors: Tensor) -> Iterator[Rows]:
        """The rows of a batch whose activations are too many for the memory: of fewer examples at a time."""
        batch, start = len(vectors), 0
        self._max_examples = self._max_examples or max(1, batch // 2)
        while start < batch:
            chunk = slice(start, min(batch, start + self._max_examples))
            part = take(inputs, chunk, batch)
            try:
                layers = self._collector.forward(part)
            except (RuntimeError, MemoryError) as reason:
                if not out_of_memory(reason) or chunk.stop - start == 1:
                    raise
                self._max_examples = (chunk.stop - start) // 2
                log.info("out of memory with %d examples at once; trying fewer", chunk.stop - start)
                continue
            of_part = vectors[chunk]
            chunks = self._general(part, of_part) if layers is None else self._rows(layers, part, of_part)
            for rows in chunks:
                yield Rows(_shifted(rows.examples, start), rows.vectors, rows.pieces, rows.factors)
                del rows
            start = chunk.stop

    def _rows(self, layers: LayerForward, inputs: Inputs, vectors: Tensor) -> Iterator[Rows]:
        batch, count = vectors.shape[:2]
        selection = self._network.selection
        factored = self._factored(layers)
        formed = [segment for segment in selection.segments if segment.name not in factored]
        parts = partition(formed, lambda segment: layers.splits(segment.name))
        segments = [segment for segment, _ in factored.values()]
        longest = max([*map(length, parts), *(numbers for _, numbers in factored.values())])
        chunks = chunking(
            batch=batch,
            vectors=count,
            parameters=selection.count,
            longest=longest,
            activations=layers.activations,
            max_numbers=self.max_numbers,
            piece_numbers=self._piece,
            whole=self._whole,
        )
        # One place for pieces that can be written to it: fresh memory costs the kernel more than filling it.
        placed = (length(each) for each in parts if len(each) > 1 or each[0].rows is not None)
        size = 0 if self._whole else min(chunks.rows, batch * chunks.vectors) * max(placed, default=0)
        scratch = torch.empty(size, dtype=selection.dtype, device=selection.device)
        for first in range(0, count, chunks.vectors):
            group = vectors[:, first : first + chunks.vectors]
            backward = layers.backward(group, chunks, factored)
            for block in self._blocks(layers, inputs, group, chunks.examples(group.shape[1])):
                pieces = self._pieces(parts, backward, block, scratch)
                factors = map(partial(backward.factors, examples=block[0], vectors=block[1]), segments)
                yield Rows(block[0], _shifted(block[1], first), pieces, factors)
                del pieces, factors
            del backward  # with all that refers to it, or the next would be formed beside it

    def _factored(self, layers: LayerForward) -> dict[str, tuple[Segment, int]]:
        """By name, the parameters whose gradients are not formed, and the numbers of the factors of one gradient."""
        if self._unformed is None:
            return {}
        known, factored = layers.factors(), {}
        for segment in self._network.selection.segments:
            size = known.get(segment.name)
            if size is not None and self._unformed(segment.start, size):
                factored[segment.name] = segment, size.numbers
        return factored

    def _blocks(self, layers: LayerForward, inputs: Inputs, vectors: Tensor, examples: int) -> Iterator[Block]:
        """Which examples and vectors make a chunk, with its gradients from the general fallback."""
        if layers.general:
            yield from self._general.blocks(inputs, vectors, layers.general, examples)
            return
        batch, count = vectors.shape[:2]
        for start in range(0, batch, examples):
            yield slice(start, min(start + examples, batch)), slice(0, count), {}

    def _pieces(self, parts: Sequence[Parts], backward: LayerBackward, block: Block, scratch: Tensor) -> Pieces:
        examples, vectors, general = block

        def gradient(part: Part, into: Tensor | None) -> Tensor:
            if part.name in general:
                return general.pop(part.name)
            return backward.gradient(part, examples, vectors, into)

        return form_pieces(parts, gradient, size_of(examples, vectors), self._network.selection, scratch)


def _shifted(place: slice, by: int) -> slice:
    return slice(place.start + by, place.stop + by)
