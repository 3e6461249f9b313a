"""The dimensions of a problem that costs depend on."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import nn

from slu.data.structure import Inputs
from slu.errors import ModelCallError
from slu.gradients import GeneralGradients, LayerInputs, Network
from slu.gradients.chunks import MAX_NUMBERS, FactorSize, Parts, is_matrix, length, partition
from slu.gradients.layers import activations_of, kept_bytes
from slu.gradients.positions import group_count, groups_at_once
from slu.parameters import SMALL_TENSOR, Segment, Selection, matrix_shape

log = logging.getLogger(__name__)

_USUAL_OUTPUTS = 10


@dataclass(frozen=True)
class Size:
    """The dimensions of a problem that costs depend on.

    Attributes:
        parameters: p.
        outputs: t.
        bytes_each: Bytes of a number of the vectors of length p.
        parts: Lengths of the parts in which a gradient comes, in order; empty for one of length p.
        kernel: Numbers of the largest convolution kernel, of which the CPU's convolutions hold a
            reordered copy while they are differentiated; 0 without convolutions.
        batch: b, inputs of a batch, of the data while fitting and of a query.
        max_numbers: Of gradients that may be in flight; one gradient in a part always may.
        tensors: Lengths of the single tensors that are formed; those below a certain length are joined to parts.
        activations: Numbers that the layers give for one input; 0 where they are not known. With them the gradients
            in them are counted, and for how many outputs they are pulled back at a time.
        widest: Of these the numbers of the largest layer.
        attention: Numbers that are kept of one input beyond the activations of a plain call: attention that is not
            fused keeps the products of all pairs of tokens.
        layers: By name, how long the inputs of each layer are in the batch that was shown; None where none was.
        segments: The tensors.
        factored: By its number, for each tensor that can be left as factors, the size of these.
        factors: Those of the tensors that are left as factors; none unless `left_as_factors` was asked.
        general: Names of the parameters without a formula, of which whole gradients are held.
        fallback: Numbers that the general fallback holds for one gradient in these, at its peak.
        groups: G, how many groups of an input's positions a query measures; 1 where outputs have no positions.
        positions: P, of an input's outputs; 0 where they have none.
        over_positions: P·C, the outputs at all positions of an input; 0 where they have none.
    """

    parameters: int
    outputs: int = _USUAL_OUTPUTS
    bytes_each: int = 4
    parts: tuple[int, ...] = ()
    kernel: int = 0
    batch: int = 1
    max_numbers: int = MAX_NUMBERS
    tensors: tuple[int, ...] = ()
    activations: int = 0
    widest: int = 0
    attention: int = 0
    layers: Mapping[str, int] | None = None
    segments: tuple[Segment, ...] = ()
    factored: Mapping[int, FactorSize] = field(default_factory=dict)
    factors: Mapping[int, FactorSize] = field(default_factory=dict)
    general: tuple[str, ...] = ()
    fallback: int = 0
    groups: int = 1
    positions: int = 0
    over_positions: int = 0

    @property
    def all_rows(self) -> int:
        """Gradients per input of a query that measures all outputs: t, or C for every group of positions."""
        return self.groups * self.over_positions // self.positions if self.positions else self.outputs

    @property
    def groups_at_once(self) -> int:
        """Of the groups of positions, those whose vectors over the outputs a query holds at a time."""
        return min(self.groups, groups_at_once(max(1, self.batch * self.over_positions)))

    @property
    def part(self) -> int:
        """Numbers of the longest part that is formed."""
        return max(self.parts, default=0 if self.factors else self.parameters)

    @property
    def longest(self) -> int:
        """Numbers of the longest part or factors."""
        return max([self.part, *(factors.numbers for factors in self.factors.values())])

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """(o, i) of every tensor as a factored scale has it; small tensors are vectors."""
        return [matrix_shape(segment.shape, least=SMALL_TENSOR) for segment in self.segments]

    @property
    def sides(self) -> int:
        """Rows and columns of all large matrices, and entries of all other tensors."""
        return sum(i if o == 1 else o + i for o, i in self.matrices)

    @property
    def written(self) -> int:
        """Numbers of the longest part that has memory of its own: not one that comes from the general fallback."""
        if not self.general:
            return self.part
        parts = self._partition(each for number, each in enumerate(self.segments) if number not in self.factors)
        return max((length(each) for each in parts if len(each) > 1 or each[0].name not in self.general), default=0)

    def _parts(self, formed: Iterable[Segment]) -> tuple[int, ...]:
        return tuple(map(length, self._partition(formed)))

    def _partition(self, formed: Iterable[Segment]) -> list[Parts]:
        return partition(formed, lambda each: is_matrix(each) and each.name not in self.general)

    def left_as_factors(self, numbers: Collection[int]) -> Size:
        """The same where gradients are not formed of the tensors with these numbers, which are among `factored`."""
        formed = [segment for number, segment in enumerate(self.segments) if number not in numbers]
        if not numbers:
            return self
        return replace(
            self,
            parts=self._parts(formed),
            tensors=tuple(segment.stop - segment.start for segment in formed),
            factors={number: self.factored[number] for number in numbers},
        )


def size_of(selection: Selection, outputs: int, batch: int = 1, max_numbers: int = MAX_NUMBERS) -> Size:
    """The size of a problem as far as the parameters tell it.

    Which tensors can be computed in parts or left as factors is known after a forward pass; here all matrices are
    assumed to be, as factors of one position, and kernels are assumed to be formed.
    """
    matrices = {number: each for number, each in enumerate(selection.segments) if is_matrix(each)}
    return Size(
        parameters=selection.count,
        outputs=outputs,
        bytes_each=selection.dtype.itemsize,
        parts=tuple(map(length, partition(selection.segments, is_matrix))),
        kernel=max((each.stop - each.start for each in selection.segments if len(each.shape) > 2), default=0),
        batch=batch,
        max_numbers=max_numbers,
        tensors=tuple(segment.stop - segment.start for segment in selection.segments),
        segments=selection.segments,
        factored={number: FactorSize.of(matrix_shape(each.shape), 1) for number, each in matrices.items()},
    )


def size_for(network: Network, outputs: int | None, batch: int | Inputs, max_numbers: int = MAX_NUMBERS) -> Size:
    """The same, with as many outputs as the last layer seems to have where none are given.

    Args:
        batch: Inputs of a batch; or a batch as `fit` takes it, or a loader of which the first is taken. Its outputs and
            activations are counted, and the positions of each layer, on which it depends whether gradients are formed.

    Cost: arithmetic; with a batch four forward passes of it and three of single points, and where parameters have no
    formula the gradients of one example.
    """
    if isinstance(batch, int):
        outputs = likely_outputs(network.model) if outputs is None else outputs
        return size_of(network.selection, outputs, batch, max_numbers)
    with network.evaluating():
        example = next(network.batches(batch, learn=False))
        seen = activations_of(network, example.inputs)
        fallback = GeneralGradients(network).numbers_of_one(example.inputs, seen.general) if seen.general else 0
        layers = _layers_of(network, example.inputs)
    unfused = _kept_by_attention(network, example.inputs)
    size = size_of(network.selection, seen.outputs if outputs is None else outputs, seen.examples, max_numbers)
    names = enumerate(network.selection.names)
    factored = {number: seen.factors[name] for number, name in names if name in seen.factors}
    activations, widest = (-(-numbers // seen.examples) for numbers in (seen.activations, seen.widest))
    size = replace(size, activations=activations, widest=widest, factored=factored, layers=layers)
    attention = unfused // (seen.examples * size.bytes_each)
    size = replace(size, general=seen.general, fallback=fallback, attention=attention)
    if network.positions:
        counts = {"groups": group_count(network.positions), "positions": prod(network.positions)}
        size = replace(size, **counts, over_positions=seen.outputs)
    return replace(size, parts=size._parts(size.segments))


def _kept_by_attention(network: Network, inputs: Inputs) -> int:
    """Bytes that autograd keeps of a batch beyond a plain call, because attention is not fused."""
    try:
        with network.evaluating():
            unfused = kept_bytes(network, inputs)
        with network.evaluating(fused=True):
            return max(0, unfused - kept_bytes(network, inputs))
    except ModelCallError as reason:  # torch.func in a forward takes no hooks
        log.info("what attention keeps is not counted: %s", reason.cause)
        return 0


def _layers_of(network: Network, inputs: Inputs) -> dict[str, int]:
    """By name, how long the inputs are of each layer that a fit on this batch would record."""
    watch = LayerInputs(network)
    with torch.no_grad():
        watch.finish(inputs, network.outputs(inputs, watch=watch))
    return {name: value.shape[1] for name, value in watch.values.items()}


def likely_outputs(model: nn.Module) -> int:
    """t, read off the last linear or convolutional layer as the module lists them; 10 where there is none.

    Only estimates may rest on it: a forward pass tells for certain, but needs an input.

    >>> likely_outputs(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 3)))
    3
    """
    layers = [each for each in model.modules() if isinstance(each, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    if not layers:
        return _USUAL_OUTPUTS
    return layers[-1].out_features if isinstance(layers[-1], nn.Linear) else layers[-1].out_channels
