"""Gradients of single samples layer by layer: a batch is recorded once, pulled back once a vector, formed in parts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from slu.data.batches import Inputs
from slu.gradients.layers.checking import MOST_LOOKED_AT, judged
from slu.gradients.layers.forming import Formed
from slu.gradients.layers.plan import Plan, Probe, candidates, make
from slu.gradients.layers.recording import Recording
from slu.gradients.network import Network
from slu.gradients.rows import PIECE, Part, out_of_memory

log = logging.getLogger(__name__)

_CHECKED = PIECE // 4  # numbers of gradients that are checked at a time, or one row: they come beside the sum
_PLANS = 64  # kept; a loader of ever new lengths would fill the memory with them


class Layers:
    """Finds out, for each kind of batch once, which parameters have gradients layer by layer.

    Autograd's record of a forward pass says what every parameter went into. Where each of these
    steps has a formula, and two backward passes tell which of its rows belong to which sample
    (`layout`), its gradients are formed from them; that they add up to autograd's own is checked on
    the first batch of its kind that has any in the samples looked at. Everything else is left to the
    general way.

    Args:
        network: The function to differentiate.
        room: How many numbers of gradients may be in flight.

    Cost: for the first batch of a kind three backward passes more; for every batch two more where
    a model may move rows by its data (indices, sorting, products with constants, functions written
    in Python), and until most samples of a batch have a gradient at every layer.
    """

    def __init__(self, network: Network, room: int) -> None:
        self._network = network
        self._room = room
        self._plans: dict[Any, Plan] = {}
        self._judged: dict[Any, dict[str, bool]] = {}
        self._off = False
        self._said: tuple[str, ...] = ()

    def open(self, inputs: Inputs) -> Opened | None:
        """A batch after its forward pass; None where no parameter has gradients layer by layer."""
        if self._off:
            return None
        recording = Recording(self._network, inputs)
        try:
            plan = self._plan(recording)
            return Opened(recording, plan, self._network.selection.dtype) if plan.steps else None
        except (RuntimeError, AttributeError, TypeError) as reason:  # another torch may name things otherwise
            if out_of_memory(reason):
                raise
            log.info("no gradients layer by layer for this model (%s)", reason)
            self._off = True
            return None

    def _plan(self, recording: Recording) -> Plan:
        known = self._plans.get(recording.signature)
        if known is not None:
            return known
        plan, probe = make(recording)
        verdicts = self._verdicts(recording, plan, probe)
        plan = plan.without({name for name, right in verdicts.items() if not right})
        if plan.sure and all(name in verdicts for name, terms in plan.terms.items() if terms):
            _forget_beyond(self._plans)
            self._plans[recording.signature] = plan
        # Silent in the samples that were looked at, but not in all: of this batch nobody vouches for its formulas.
        if recording.points > MOST_LOOKED_AT:
            plan = plan.without({name for name in plan.terms if name not in verdicts and plan.speaks(name, probe)})
        if plan.general != self._said:
            self._said = plan.general
            log.info("gradients the general way for %s", ", ".join(plan.general) or "no parameter any more")
        return plan

    def _verdicts(self, recording: Recording, plan: Plan, probe: Probe) -> dict[str, bool]:
        """By parameter, whether its formulas are right; of one that was silent so far there is no verdict."""
        if recording.structure not in self._judged:
            _forget_beyond(self._judged)
        known = self._judged.setdefault(recording.structure, {})
        names = [name for name, terms in plan.terms.items() if terms and name not in known]
        if names:
            dtype = self._network.selection.dtype
            formed = Formed(recording, plan, dtype)
            known |= judged(recording, plan, probe, formed, names=names, room=min(self._room, _CHECKED))
        return known


def shape_of_results(network: Network, inputs: Inputs) -> tuple[int, int, int]:
    """(b, t, numbers): points and outputs of a batch, and what one vector's gradients in the layers' results take.

    Cost: one forward pass, its activations held.
    """
    recording = Recording(network, inputs)
    points, outputs = recording.outputs.shape
    try:
        return points, outputs, sum(prod(recording.graph.shape((step, 0))) for step in candidates(recording))
    except (RuntimeError, AttributeError, TypeError):  # as in `Layers.open`: then all goes the general way
        return points, outputs, 0


def _forget_beyond(kept: dict[Any, Any]) -> None:
    while len(kept) >= _PLANS:
        del kept[next(iter(kept))]


class Opened:
    """A batch that was passed forward, from which rows can be pulled back.

    Attributes:
        outputs: Of the batch, without history.
        general: Parameters whose gradients must be found the general way.
        numbers: What one vector's gradients in the layers' results take.
    """

    def __init__(self, recording: Recording, plan: Plan, dtype: torch.dtype) -> None:
        self._recording = recording
        self._plan = plan
        self._formed = Formed(recording, plan, dtype)
        self._places = [(step, 0) for step in plan.steps]
        self.outputs = recording.outputs.detach()
        self.general = plan.general
        self.numbers = sum(prod(recording.graph.shape(place)) for place in self._places)

    def splits(self, name: str) -> bool:
        """Whether a parameter's gradients can be formed a few of its rows at a time."""
        return name not in self.general and self._formed.splits(name)

    def pull(self, vectors: Tensor, *, ahead: bool) -> Pulled:
        """Gradients in the layers' results for vectors (b, g, t).

        Args:
            vectors: Over the outputs.
            ahead: Whether small parameters' gradients are formed at once: worth it where samples
                are then taken a few at a time.

        Cost: g backward passes of the batch.
        """
        found = [self._recording.pull(self._places, vectors[:, place]) for place in range(vectors.shape[1])]
        cotangents = {place[0]: [each[index] for each in found] for index, place in enumerate(self._places)}
        small = self._small(vectors.shape[0] * vectors.shape[1]) if ahead else []
        return Pulled(self._formed, cotangents, small, len(vectors))

    def _small(self, rows: int) -> list[str]:
        """Parameters so small that their gradients are formed for all samples at once: fewer calls."""
        sizes = sorted((self._recording.leaves[name].numel(), name) for name in self._plan.terms)
        left, names = PIECE, list[str]()
        for size, name in sizes:
            left -= rows * size
            if left < 0:
                break
            names.append(name)
        return names


class Pulled:
    """Rows of a batch for a few vectors, of which any part can be formed."""

    def __init__(
        self, formed: Formed, cotangents: Mapping[int, Sequence[Tensor]], small: Sequence[str], points: int
    ) -> None:
        self._formed = formed
        self._cotangents = cotangents
        self._vectors = slice(0, len(next(iter(cotangents.values()))))
        every = slice(0, points)
        self._ready = {name: formed.gradient(name, cotangents, every) for name in small}

    def gradient(self, part: Part, samples: slice, vectors: slice, into: Tensor | None = None) -> Tensor:
        """(c, g, ...) gradients of some samples for some of the vectors in a part of a parameter."""
        if part.name in self._ready:
            return part.of(self._ready[part.name][samples, vectors])
        cotangents = self._cotangents
        if vectors != self._vectors:
            cotangents = {step: each[vectors] for step, each in cotangents.items()}
        return self._formed.gradient(part.name, cotangents, samples, into, rows=part.rows)
