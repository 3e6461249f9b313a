"""What a query costs, layer by layer, as measured on a batch: what was formed, what was not, and what dominates."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass


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
        plain: Seconds of a plain forward pass of the batch, without gradients.
        forward, backward: Of the recorded forward pass, and of the backward pass to the layers' results.
        layers: By tensor, in the order of their cost.
        subspace: Of the projection onto the k directions, and of everything else.
    """

    points: int
    outputs: int
    plain: float
    forward: float
    backward: float
    layers: tuple[LayerCost, ...]
    subspace: float

    @property
    def seconds(self) -> float:
        """Of the whole query."""
        return self.forward + self.backward + sum(layer.seconds for layer in self.layers) + self.subspace

    @property
    def dominant(self) -> str:
        """The step, or the layer, that took the most time."""
        steps = {"forward pass": self.forward, "backward pass": self.backward, "subspace": self.subspace}
        steps |= {str(layer): layer.seconds for layer in self.layers}
        return max(steps, key=lambda step: steps[step])

    def __str__(self) -> str:
        def line(what: str, how: str, seconds: float) -> str:
            return f"{what[:40]:<42}{how:<26}{1e3 * seconds:>9.2f} ms{seconds / self.seconds:>7.0%}"

        lines = [
            line("forward pass", "recorded", self.forward),
            line("backward pass", "one row per input", self.backward),
            *(
                line(str(layer), f"{'formed' if layer.formed else 'factors'}, {layer.numbers:,} numbers", layer.seconds)
                for layer in self.layers
            ),
            line("subspace and the rest", "", self.subspace),
            line("query", f"{self.seconds / self.plain:.1f} plain forward passes", self.seconds),
            f"{self.points} inputs, {self.outputs} outputs; the {self.dominant} takes the most time",
        ]
        return "\n".join(lines)


class Stopwatch:
    """Books the time since the last call to what was done in it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._last = time.perf_counter()

    def book(self, what: str) -> None:
        """To something by name."""
        now = time.perf_counter()
        self.seconds[what] += now - self._last
        self._last = now
