"""What a query costs, layer by layer, as measured on a batch: what was formed, what was not, and what dominates."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slu.core.directions import FISHER, JACOBIAN, Outputs, chosen
from slu.core.distances import watched_distances
from slu.core.positions import points_of
from slu.core.readout import Readout
from slu.core.scaling import Scaling, sketch_rows
from slu.gradients import LayerInputs, Rows
from slu.parameters import Selection
from slu.sketches import Sketch

_SHOWN = 12  # layers that a printed report has a line for


@dataclass(frozen=True)
class LayerCost:
    """The gradients of one tensor, or of adjacent small ones that are formed as one piece.

    Attributes:
        names: The tensors.
        numbers: Of one gradient in them.
        formed: Whether the gradients were formed; otherwise they were sketched from their factors.
        seconds: To form, scale, measure and sketch them, for the whole batch.
    """

    names: tuple[str, ...]
    numbers: int
    formed: bool
    seconds: float

    def __str__(self) -> str:
        return self.names[0] if len(self.names) == 1 else f"{self.names[0]} and {len(self.names) - 1} more"


@dataclass(frozen=True)
class CostReport:
    """The cost of the default reading of one batch; print it.

    Attributes:
        points, outputs: b and t.
        rows: Gradients per input that were measured.
        plain: Seconds of a plain forward pass of the batch, without gradients.
        forward, backward: Of the recorded forward pass, and of the backward pass to the layers' results.
        distances: Of the distances of the layers' inputs.
        layers: By tensor, in the order of their cost.
        subspace: Of the projection onto the k directions, and of everything else.
    """

    points: int
    outputs: int
    rows: int
    plain: float
    forward: float
    distances: float
    backward: float
    layers: tuple[LayerCost, ...]
    subspace: float

    @property
    def seconds(self) -> float:
        """Of the whole query."""
        formed = sum(layer.seconds for layer in self.layers)
        return self.forward + self.distances + self.backward + formed + self.subspace

    @property
    def dominant(self) -> str:
        """The step, or the layer, that took the most time."""
        steps = {"forward pass": self.forward, "backward pass": self.backward, "subspace": self.subspace}
        steps["distances of layers"] = self.distances
        steps |= {str(layer): layer.seconds for layer in self.layers}
        return max(steps, key=lambda step: steps[step])

    def __str__(self) -> str:
        rest = self.layers[_SHOWN:]

        def line(what: str, how: str, seconds: float) -> str:
            return f"{what[:40]:<42}{how:<26}{1e3 * seconds:>9.2f} ms{seconds / self.seconds:>7.0%}"

        lines = [
            line("forward pass", "recorded", self.forward),
            line("distances of layers", "", self.distances),
            line("backward pass", f"gradients per input: {self.rows}", self.backward),
            *(
                line(str(layer), f"{'formed' if layer.formed else 'factors'}, {layer.numbers:,} numbers", layer.seconds)
                for layer in self.layers[:_SHOWN]
            ),
            *([line(f"{len(rest)} others", "", sum(layer.seconds for layer in rest))] if rest else []),
            line("subspace and the rest", "", self.subspace),
            line("query", f"{self.seconds / self.plain:.1f} plain forward passes", self.seconds),
            f"{self.points} inputs, {self.outputs} outputs; the {self.dominant} takes the most time",
        ]
        return "\n".join(lines)


class _Stopwatch:
    """Adds up the time since the last call, by what was done in it; that of several pieces by their numbers."""

    def __init__(self) -> None:
        self.seconds: defaultdict[Any, float] = defaultdict(float)
        self._last = time.perf_counter()

    def add(self, what: Any) -> None:
        now = time.perf_counter()
        self.seconds[what] += now - self._last
        self._last = now

    def add_pieces(self, pieces: Sequence[tuple[int, int]], formed: bool) -> None:
        now, total = time.perf_counter(), sum(numbers for _, numbers in pieces)
        for start, numbers in pieces:
            self.seconds[start, numbers, formed] += (now - self._last) * numbers / total
        self._last = now


def query_cost(
    readout: Readout,
    scale: Scaling | None,
    sketch: Sketch,
    energies: Callable[[Tensor, Tensor], Tensor],
    choice: Outputs,
    data: Any,
) -> CostReport:
    """What the default reading of a batch takes, by layer; of a loader the first batch.

    Args:
        readout: Of the score.
        scale, sketch: d and S, with which it measures.
        energies: From squared lengths and sketches of rows to their energies in the subspace.
        choice: Which rows the default reading measures.
        data: As of a query.

    Cost: two queries and two forward passes; the first of each is not timed, for it makes plans and fills caches.
    """
    network = readout.network
    layers = readout.layers()
    names = () if layers is None else layers.names
    inputs_of_layers = LayerInputs(network, names, {} if layers is None else layers.folding.shape_of)
    with network.evaluating():
        batch = next(network.batches(data, once=True, learn=False))
        readout.measure(batch, {choice: (JACOBIAN, FISHER)}, layers=True)
        with torch.no_grad():
            network.outputs(batch.inputs)
            watch = _Stopwatch()
            network.outputs(batch.inputs)
            watch.add("plain")
        passed = readout.gradients.forward(batch.inputs, inputs_of_layers)
        watch.add("forward")
        if layers is not None:
            watched_distances(layers, inputs_of_layers, batch.inputs, passed.outputs)
        watch.add("distances")
        points = points_of(network, batch, passed.outputs, readout.seed)
        rows_of_batch = chosen(readout.likelihood, points.outputs, points.draw, choice, (JACOBIAN, FISHER))
        watch.add("subspace")

        def meter(rows: Rows) -> Tensor:
            watch.add("backward")  # before the first chunk; between chunks nothing is left to do
            squared, sketched = sketch_rows(rows, scale, sketch, watch.add_pieces)
            watch.add("subspace")
            measured = energies(squared, sketched)
            watch.add("subspace")
            return measured

        measured = points.measure(passed, [rows_of_batch], meter)
    steps = {name: watch.seconds.pop(name, 0.0) for name in ("plain", "forward", "distances", "backward", "subspace")}
    inputs, outputs = passed.outputs.shape
    rows = points.groups * measured.shape[-1]
    return CostReport(inputs, outputs, rows, layers=_layers(network.selection, watch.seconds), **steps)


def _layers(selection: Selection, seconds: Mapping[tuple[int, int, bool], float]) -> tuple[LayerCost, ...]:
    """By tensor, or by tensors that came as one piece, from seconds by first coordinate, numbers, and formed or not."""
    parts: dict[tuple[str, ...], tuple[bool, float]] = {}
    for (start, numbers, formed), taken in seconds.items():
        covered = (
            segment for segment in selection.segments if segment.start < start + numbers and segment.stop > start
        )
        names = tuple(segment.name for segment in covered)
        parts[names] = formed, parts.get(names, (formed, 0.0))[1] + taken
    sizes = {segment.name: segment.stop - segment.start for segment in selection.segments}
    layers = [LayerCost(names, sum(sizes[name] for name in names), *part) for names, part in parts.items()]
    return tuple(sorted(layers, key=lambda layer: -layer.seconds))
