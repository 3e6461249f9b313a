"""Per-example gradients whatever the model: the general fallback."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from slu.data.structure import Inputs, counts_points, leaves, map_tensors, take, tensors
from slu.errors import out_of_memory
from slu.gradients.chunks import (
    MAX_NUMBERS,
    Block,
    Meter,
    Rows,
    form_pieces,
    measure_chunks,
    partition,
    size_of,
    squared_lengths,
    vmapped_examples,
)
from slu.gradients.layers.verification import agree
from slu.gradients.network import Network, pull_back
from slu.seeds import stream

log = logging.getLogger(__name__)

_KINDS = 64  # of blocks, that are remembered as checked
_NEGLIGIBLE = 1e-3  # share of the longest parameter's gradients from which errors are relative to these


class GeneralGradients:
    """Rows of Jacobians, many at once where memory and the model allow, one by one where not.

    `vmap` differentiates several examples in one call. It fails on control flow that depends on data, activation
    checkpointing and custom autograd functions, and it holds t·p numbers per example: where it fails, is wrong, or
    would hold more than may be in flight, examples are differentiated one by one with one backward pass per row.

    Args:
        network: The function to differentiate.
        max_numbers: How many numbers of gradients may be in flight; at least p are.

    Attributes:
        failure: Why vmap cannot differentiate the model, in one line; None as long as it can.

    Cost: t backward passes per example in either way. vmap holds c·t·p numbers for c examples at once, with c·t at
    most the batch (or t, for one example), so that the activations are those of one batch; the loop holds p. The
    first block of each shape is compared with a plain backward pass, which takes p numbers more.
    """

    def __init__(self, network: Network, max_numbers: int = MAX_NUMBERS) -> None:
        self._network = network
        self._max_numbers = max_numbers
        self.failure: str | None = None
        self._checked: set[Any] = set()

    def __call__(self, inputs: Inputs, vectors: Tensor) -> Iterator[Rows]:
        """The rows of a batch for vectors of shape (b, q, t): q of them for each example."""
        selection = self._network.selection
        parts = partition(selection.segments, lambda _: False)
        no_scratch = torch.empty(0)
        for examples, of_vectors, gradients in self.blocks(inputs, vectors, selection.names):
            pop, shape = gradients.pop, size_of(examples, of_vectors)
            pieces = form_pieces(parts, lambda part, _, pop=pop: pop(part.name), shape, selection, no_scratch)
            yield Rows(examples, of_vectors, pieces)

    def measure(self, inputs: Inputs, vectors: Tensor, meter: Meter) -> Tensor:
        """(..., b, q): a meter's values for every row uᵀJ of a batch, for vectors (b, q, t)."""
        return measure_chunks(self(inputs, vectors), (vectors.shape[0], vectors.shape[1]), meter)

    def blocks(
        self, inputs: Inputs, vectors: Tensor, names: Sequence[str], max_examples: int | None = None
    ) -> Iterator[Block]:
        """The gradients in some of the parameters alone, for at most so many examples at a time."""
        batch, count = vectors.shape[:2]
        size = sum(self._network.parameters()[name].numel() for name in names)
        start = 0
        while start < batch:
            examples = min(vmapped_examples(batch, count, size, self._max_numbers), max_examples or batch)
            if self.failure is not None or examples < 1 or not _all_tensors(inputs):
                yield from self._one_by_one(inputs, vectors, names, start)
                return
            chunk = slice(start, min(start + examples, batch))
            try:
                gradients = self._vmapped(inputs, vectors, names, chunk)
                self._check(gradients, inputs, vectors, chunk)
            except RuntimeError as reason:
                self._retreat(reason, chunk.stop - start, count * size)
                continue
            yield chunk, slice(0, count), gradients
            del gradients
            start = chunk.stop

    def numbers_of_one(self, inputs: Inputs, names: Sequence[str]) -> int:
        """What is held for one example at the peak of a call: its activations, its gradients, and sums of these.

        Cost: a forward and a backward pass of the first example of a batch.
        """
        with torch.no_grad():
            outputs = self._network.outputs(inputs)
        with _Live() as live:
            try:
                self._vmapped(inputs, outputs[:, None], names, slice(0, 1))
            except RuntimeError:  # then examples are differentiated one by one
                list(zip(range(1), self._one_by_one(inputs, outputs[:, None], names, 0), strict=False))
        return live.most // self._network.selection.dtype.itemsize

    def _retreat(self, reason: RuntimeError, tried: int, each: int) -> None:
        if out_of_memory(reason):
            self._max_numbers = tried // 2 * each
            log.info("out of memory with %d examples at once; trying fewer", tried)
        else:
            self.failure = (str(reason).splitlines() or [type(reason).__name__])[0]
            log.info("vmap cannot differentiate this model (%s); examples are differentiated one by one", reason)

    def _vmapped(self, inputs: Inputs, vectors: Tensor, names: Sequence[str], chunk: slice) -> dict[str, Tensor]:
        every = self._network.parameters()
        parameters = {name: every[name] for name in names}
        batch = len(vectors)
        of_points = [tensor[chunk] for tensor in tensors(inputs) if counts_points(tensor, batch)]

        def rows(of_example: Tensor, *example: Tensor) -> dict[str, Tensor]:
            left = iter(example)
            alone = map_tensors(
                lambda tensor: next(left).unsqueeze(0) if counts_points(tensor, batch) else tensor, inputs
            )
            outputs, pullback, *_ = vjp(lambda values: self._network.outputs(alone, values)[0], parameters)
            return vmap(lambda vector: pullback(vector)[0])(of_example.to(outputs.dtype))

        with warnings.catch_warnings():
            # Operations without a batching rule run in a loop inside vmap: slower, not wrong.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return vmap(rows)(vectors[chunk], *of_points)

    def _check(self, gradients: Mapping[str, Tensor], inputs: Inputs, vectors: Tensor, chunk: slice) -> None:
        """Compare a weighted sum of rows with one plain backward pass, for each new shape once.

        torch's rules for vmap are written by hand for each operation, and some are wrong for some
        shapes (PReLU's in torch 2.13): without any error.
        """
        shapes = tuple(tensor.shape[1:] for tensor in tensors(inputs))
        key = (tuple(gradients), shapes, chunk.stop - chunk.start, vectors.shape[1])
        if key in self._checked:
            return
        weights = torch.randn(key[2:], generator=stream(0, "weights"), dtype=torch.float64).to(vectors)
        every = self._network.parameters()
        leaves = {name: every[name].requires_grad_() for name in gradients}
        outputs = self._network.outputs(take(inputs, chunk, len(vectors)), leaves)
        sums = pull_back(outputs, leaves, torch.einsum("bq,bqt->bt", weights, vectors[chunk]))
        lengths: dict[str, float] = {}
        for name, rows in gradients.items():
            if rows.shape != (*weights.shape, *leaves[name].shape):
                raise RuntimeError(f"vmap gave gradients of {name} in the shape {tuple(rows.shape)}")
            flat = rows.reshape(weights.numel(), -1).to(self._network.selection.dtype)
            by = weights.reshape(-1).to(flat.dtype)
            lengths[name] = float((by.abs() * squared_lengths(flat).sqrt()).sum())
            sums[name] = sums[name].reshape(-1).to(flat.dtype) - by @ flat
        for name, rows in gradients.items():
            # Some gradients cancel to rounding alone (a bias of keys before a softmax): as part of the whole it counts.
            length = max(lengths[name], _NEGLIGIBLE * max(lengths.values()))
            if not agree(sums.pop(name), length, (outputs.dtype, rows.dtype)):
                raise RuntimeError(f"vmap gave wrong gradients of {name}")
        if len(self._checked) >= _KINDS:
            self._checked.clear()
        self._checked.add(key)

    def _one_by_one(self, inputs: Inputs, vectors: Tensor, names: Sequence[str], start: int) -> Iterator[Block]:
        batch, count = vectors.shape[:2]
        for index in range(start, batch):
            every = self._network.parameters()
            leaves = {name: every[name].requires_grad_() for name in names}
            one = slice(index, index + 1)
            outputs = self._network.outputs(take(inputs, one, batch), leaves)
            for place in range(count):
                pulled = pull_back(outputs, leaves, vectors[one, place], retain_graph=place + 1 < count)
                gradients = {name: pulled.pop(name)[None, None] for name in names}
                yield one, slice(place, place + 1), gradients
                del gradients


def _all_tensors(inputs: Inputs) -> bool:
    """Whether every leaf is a tensor: vmap cannot run over a list of examples."""
    return len(tensors(inputs)) == len(leaves(inputs))


class _Live(TorchDispatchMode):
    """Follows the tensors that operations make, as long as anything refers to them; `most` is their bytes at most."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._bytes: dict[StorageWeakRef, int] = {}
        self._upper = 0  # bytes, those that were freed since the last count included

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        given = [tensor for tensor in tensors((args, kwargs or {})) if tensor.layout is torch.strided]
        before = {tensor.untyped_storage()._cdata for tensor in given}
        made = func(*args, **(kwargs or {}))
        for tensor in tensors(made if isinstance(made, tuple | list) else (made,)):
            if tensor.layout is not torch.strided:  # sparse, of an embedding
                continue
            storage = tensor.untyped_storage()
            known = StorageWeakRef(storage)
            if storage._cdata not in before and known not in self._bytes:
                self._bytes[known] = storage.nbytes()
                self._upper += storage.nbytes()
        if self._upper > self.most:
            self._bytes = {known: size for known, size in self._bytes.items() if not known.expired()}
            self._upper = sum(self._bytes.values())
            self.most = max(self.most, self._upper)
        return made
