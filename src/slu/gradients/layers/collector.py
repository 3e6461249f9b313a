"""Per-example gradients layer by layer: one forward pass, one backward pass per vector, gradients in parts."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from slu.data.structure import Inputs
from slu.errors import out_of_memory
from slu.gradients.chunks import (
    CHECKED_EXAMPLES,
    PIECE_NUMBERS,
    Chunking,
    Factors,
    FactorSize,
    Part,
    check_size,
)
from slu.gradients.layers.formulas import Embedding, Formula, Take, can_split, has_factors
from slu.gradients.layers.graph import Graph, Recording, gradient_numbers
from slu.gradients.layers.patterns import (
    Plan,
    Probe,
    Site,
    assumed_plan,
    candidates,
    formula_at,
    is_transposed,
    make_plan,
    resized_plan,
)
from slu.gradients.layers.verification import Layout, verify
from slu.gradients.network import Network
from slu.parameters import Segment, matrix_shape

log = logging.getLogger(__name__)

_PLANS = 64  # kept; a loader of ever new lengths would fill the memory with them
_ENOUGH = 16  # examples of a batch that show how those of a larger one are laid out


class Collector:
    """Determines, once for each kind of batch, which parameters have gradients layer by layer.

    These are the parameters for which each step that takes them has a formula, and two backward passes show which of
    the step's rows belong to which example. That the gradients add up to autograd's is verified on the first batch of
    its kind that has any in the examples checked. Everything else is left to the general fallback.

    Args:
        network: The function to differentiate.
        max_numbers: How many numbers of gradients may be in flight.

    Cost: for the first batch of a kind three backward passes more; for every batch two more where a model may reorder
    rows by its data (`graph.may_reorder`), and until most examples of a batch have a gradient at every layer.
    """

    def __init__(self, network: Network, max_numbers: int) -> None:
        self._network = network
        self._max_numbers = max_numbers
        # Shared by all that differentiate the network: the scale, the solver and the score of one fit.
        self._plans: dict[Any, Plan] = network.cache.setdefault("plans", {})
        self._verified: dict[Any, dict[str, bool]] = network.cache.setdefault("verified", {})
        # By the steps taken, the signature of the largest batch that has a plan.
        self._largest: dict[Any, Any] = network.cache.setdefault("largest", {})
        self._off = False
        self._logged: tuple[str, ...] = ()

    def forward(self, inputs: Inputs, watch: AbstractContextManager[Any] | None = None) -> LayerForward | None:
        """A batch after its forward pass; None where no parameter has gradients layer by layer."""
        if self._off:
            return None
        recording = Recording(self._network, inputs, watch)
        try:
            plan = self._plan(recording)
            return LayerForward(recording, plan, self._network.selection.dtype) if plan.steps else None
        except (RuntimeError, AttributeError, TypeError) as reason:  # another torch may use other names
            if out_of_memory(reason):
                raise
            log.info("no gradients layer by layer for this model (%s)", reason)
            self._off = True
            return None

    def _plan(self, recording: Recording) -> Plan:
        known = self._plans.get(recording.signature)
        if known is not None:
            return known
        plan = self._of_another_size(recording)
        if plan is not None:
            self._keep(recording, plan)
            return plan
        plan, probe = make_plan(recording)
        verdicts = self._verdicts(recording, plan, probe)
        plan = plan.without({name for name, right in verdicts.items() if not right})
        if plan.reusable and all(name in verdicts for name, terms in plan.terms.items() if terms):
            self._keep(recording, plan)
        # Without a gradient in the examples that were checked, but not in all: these formulas are not verified yet.
        if recording.examples > CHECKED_EXAMPLES:
            plan = plan.without(
                {name for name in plan.terms if name not in verdicts and plan.has_gradient(name, probe)}
            )
        if plan.general != self._logged:
            self._logged = plan.general
            log.info("gradients by the general fallback for %s", ", ".join(plan.general) or "no parameter any more")
        return plan

    def _keep(self, recording: Recording, plan: Plan) -> None:
        _forget_beyond(self._plans)
        self._plans[recording.signature] = plan
        self._largest[recording.graph.structure] = max(
            self._largest.get(recording.graph.structure, recording.signature), recording.signature, key=lambda of: of[0]
        )
        _forget_beyond(self._largest)

    def _of_another_size(self, recording: Recording) -> Plan | None:
        """The plan of a batch of more examples that took the same steps on tensors of otherwise equal shapes.

        What is left of a batch from which points were held out, or the last batch of a loader: no other plan is due.
        A few examples do not show how many are laid out, so their plans are not used for larger batches.
        """
        largest = self._largest.get(recording.graph.structure)
        if largest is None or largest not in self._plans or largest[0] < min(recording.examples, _ENOUGH):
            return None
        return resized_plan(self._plans[largest], largest, recording)

    def _verdicts(self, recording: Recording, plan: Plan, probe: Probe) -> dict[str, bool]:
        """By parameter, whether its formulas are right; without those that had no gradient so far."""
        if recording.structure not in self._verified:
            _forget_beyond(self._verified)
        known = self._verified.setdefault(recording.structure, {})
        of_others = {name: terms for name, terms in plan.terms.items() if terms and name not in known}
        steps = {name: {site.step for site, _ in terms} for name, terms in of_others.items()}
        if steps:
            dtype = self._network.selection.dtype
            planned, numbers = PlannedGradients(recording, plan, dtype), check_size(self._max_numbers)
            known |= verify(recording, probe.vectors, probe.gradients, steps, planned, dtype=dtype, numbers=numbers)
        return known


@dataclass(frozen=True)
class BatchSize:
    """What of a batch the memory of its gradients depends on.

    Attributes:
        examples, outputs: b and t.
        activations: Numbers of one vector's gradients in its activations.
        widest: Those in the largest of them.
        factors: By parameter whose gradients have factors, the size of these.
        general: Parameters without a formula.
    """

    examples: int
    outputs: int
    activations: int = 0
    widest: int = 0
    factors: Mapping[str, FactorSize] = field(default_factory=dict)
    general: tuple[str, ...] = ()


def activations_of(network: Network, inputs: Inputs) -> BatchSize:
    """The size of a batch, as far as a forward pass tells it: rows are taken to be laid out with examples first.

    Cost: one forward pass, its activations held.
    """
    recording = Recording(network, inputs)
    examples, outputs = recording.outputs.shape
    try:
        numbers = gradient_numbers(recording.graph, candidates(recording)).values()
        plan = assumed_plan(recording)
        factors = PlannedGradients(recording, plan, network.selection.dtype).all_factors()
        return BatchSize(examples, outputs, sum(numbers), max(numbers, default=0), factors, plan.general)
    except (RuntimeError, AttributeError, TypeError):  # as in `Collector.forward`: the general fallback has none
        return BatchSize(examples, outputs, general=tuple(recording.leaves))


def _forget_beyond(kept: dict[Any, Any]) -> None:
    while len(kept) >= _PLANS:
        del kept[next(iter(kept))]


class LayerForward:
    """A batch after its forward pass, from which rows can be pulled back.

    Attributes:
        outputs: Of the batch, without history.
        general: Parameters whose gradients must come from the general fallback.
        activations: Numbers of one vector's gradients in the layers' results.
        factors: By parameter whose gradients have factors, the size of these; called.
    """

    def __init__(self, recording: Recording, plan: Plan, dtype: torch.dtype) -> None:
        self._recording = recording
        self._plan = plan
        self._planned = PlannedGradients(recording, plan, dtype)
        self.factors = self._planned.all_factors
        self.outputs = recording.outputs.detach()
        self.general = plan.general
        self.activations = sum(gradient_numbers(recording.graph, plan.steps).values())

    def splits(self, name: str) -> bool:
        """Whether a parameter's gradients can be formed a few of its rows at a time."""
        return name not in self.general and self._planned.splits(name)

    def backward(self, vectors: Tensor, chunks: Chunking, unformed: Collection[str] = ()) -> LayerBackward:
        """Gradients in the layers' results for vectors (b, g, t), of which `chunks` will be formed.

        Args:
            vectors: Over the outputs.
            chunks: Of how many examples gradients are formed at a time.
            unformed: Parameters of which only the factors are asked for.

        Cost: g backward passes of the batch.
        """
        batch, count = vectors.shape[:2]
        leaves = self._recording.leaves
        formed = sorted((leaves[name].numel(), name) for name in self._plan.terms if name not in unformed)
        # The gradient of a single example is autograd's own, in fewer calls than by formulas.
        alone = batch == 1 and count * sum(size for size, _ in formed) <= PIECE_NUMBERS
        names = [name for _, name in formed] if alone else []
        steps = self._plan.steps_of(unformed) if alone else self._plan.steps
        places = [(step, 0) for step in steps]
        pulled = [self._recording.pull_back(places, vectors[:, place], names) for place in range(count)]
        cotangents = {step: [each[index] for each, _ in pulled] for index, step in enumerate(steps)}
        ready = {name: torch.stack([of_leaves[name] for _, of_leaves in pulled])[None] for name in names}
        if not alone:
            ahead = chunks.formed_ahead(count, (size for size, _ in formed))
            for _, name in formed[: len(ahead)]:
                ready[name] = self._planned.form(name, cotangents, slice(0, batch))
        return LayerBackward(self._planned, cotangents, ready, count)


class LayerBackward:
    """Rows of a batch for a few vectors, of which any part can be formed."""

    def __init__(
        self,
        planned: PlannedGradients,
        cotangents: Mapping[int, Sequence[Tensor]],
        ready: Mapping[str, Tensor],
        vectors: int,
    ) -> None:
        self._planned = planned
        self._cotangents = cotangents
        self._ready = ready
        self._vectors = slice(0, vectors)

    def gradient(self, part: Part, examples: slice, vectors: slice, into: Tensor | None = None) -> Tensor:
        """(c, g, ...) gradients of some examples for some of the vectors in a part of a parameter."""
        if part.name in self._ready:
            return part.of(self._ready[part.name][examples, vectors])
        return self._planned.form(part.name, self._of(vectors), examples, into, rows=part.rows)

    def factors(self, segment: Segment, examples: slice, vectors: slice) -> Factors:
        """The gradients of some examples for some of the vectors in a whole parameter, not formed."""
        return Factors(segment.start, *self._planned.factors(segment.name, self._of(vectors), examples))

    def _of(self, vectors: slice) -> Mapping[int, Sequence[Tensor]]:
        if vectors == self._vectors:
            return self._cotangents
        return {step: each[vectors] for step, each in self._cotangents.items()}


@dataclass(frozen=True)
class _Term:
    """One of the formulas whose gradients add up to a parameter's; `derived`: in a tensor made from it, not in it."""

    site: Site
    layout: Layout
    formula: Formula
    derived: bool


class PlannedGradients:
    """The per-example gradients that a plan gives for a recorded batch.

    Args:
        recording: The batch.
        plan: Of this recording, or of one of the same signature.
        dtype: Of the gradients.
    """

    def __init__(self, recording: Recording, plan: Plan, dtype: torch.dtype) -> None:
        self._recording = recording
        self._dtype = dtype
        self._terms = {
            name: [_term(recording.graph, site, layout) for site, layout in terms] for name, terms in plan.terms.items()
        }

    def splits(self, name: str) -> bool:
        """Whether gradients in one parameter can be formed a few rows of its first dimension at a time."""
        return all(not term.derived and can_split(term.formula) for term in self._terms[name])

    def all_factors(self) -> dict[str, FactorSize]:
        """By parameter whose gradients have factors, the size of these."""
        result: dict[str, FactorSize] = {}
        for name, terms in self._terms.items():
            positions = self._positions(name)
            if positions is not None:
                words = isinstance(terms[0].formula, Embedding)
                result[name] = FactorSize.of(matrix_shape(self._recording.leaves[name].shape), positions, words)
        return result

    def _positions(self, name: str) -> int | None:
        """T, over all uses of a parameter; None where its gradients have no factors.

        Words of a table are factors of another kind than vectors, so a parameter must not be used as both.
        """
        total = 0
        terms = self._terms[name]
        for term in terms:
            formula, rows = term.formula, term.layout.outer * term.layout.inner
            positions = formula.positions(rows) if has_factors(formula) and not term.derived else None
            if positions is None or type(formula) is not type(terms[0].formula):
                return None
            total += positions
        shape = self._recording.leaves[name].shape
        # Otherwise the sketch sees another matrix than the layer does, or a vector.
        return total if total and len(shape) > 1 and shape[0] > 1 and prod(shape[1:]) > 1 else None

    def factors(self, name: str, cotangents: Mapping[int, Sequence[Tensor]], examples: slice) -> tuple[Tensor, Tensor]:
        """Left and right factors of the gradients of some examples in a parameter that has `positions`."""
        pairs = []
        with torch.no_grad():
            for term in self._terms[name]:
                take, formula = self._take(term.layout, examples), term.formula
                assert has_factors(formula)
                pairs.append(formula.factors([take(formula.rows(each)) for each in cotangents[term.site.step]], take))
        # What a step saved of the forward pass has a history.
        left, right = ([side.detach() for side in sides] for sides in zip(*pairs, strict=True))
        return _joined(left), _joined(right)

    def form(
        self,
        name: str,
        cotangents: Mapping[int, Sequence[Tensor]],
        examples: slice,
        into: Tensor | None = None,
        *,
        rows: slice | None = None,
    ) -> Tensor:
        """(c, g, ...) gradients of some examples in one parameter.

        Args:
            name: The parameter.
            cotangents: By step, gradients in its result for g vectors.
            examples: Which.
            into: Where they may be written to.
            rows: Of the parameter's first dimension, where it `splits`; None for all.
        """
        total: Tensor | None = None
        with torch.no_grad():
            for term in self._terms[name]:
                take, formula = self._take(term.layout, examples), term.formula
                formula = formula if rows is None or not can_split(formula) else formula.part(rows)
                gradient = formula.gradient([take(formula.rows(each)) for each in cotangents[term.site.step]], take)
                if not isinstance(gradient, Tensor):
                    gradient = gradient.form(None if term.derived or total is not None else into)
                gradient = self._to_parameter(term.site, gradient) if term.derived else gradient
                total = gradient if total is None else total.add_(gradient)
        if total is None:  # of a parameter that outputs do not depend on
            leaf = self._recording.leaves[name]
            shape = leaf.shape if rows is None else leaf[rows].shape
            vectors = len(next(iter(cotangents.values())))
            total = leaf.new_zeros(examples.stop - examples.start, vectors, *shape, dtype=self._dtype)
        return total

    def _take(self, layout: Layout, examples: slice) -> Take:
        def take(rows: Tensor) -> Tensor:
            taken = layout.take(rows, examples)
            return taken.to(self._dtype) if taken.is_floating_point() else taken

        return take

    def _to_parameter(self, site: Site, gradient: Tensor) -> Tensor:
        """From gradients in a tensor made from the parameter to gradients in the parameter."""
        leaf, derived = self._recording.leaves[site.parameter], self._recording.graph.edge(site.path[-1])
        flat = gradient.flatten(0, 1).to(leaf.dtype)
        (pulled,) = torch.autograd.grad(derived, leaf, flat, is_grads_batched=True, retain_graph=True)
        return pulled.unflatten(0, gradient.shape[:2]).to(self._dtype).contiguous()


def _joined(sides: Sequence[Tensor]) -> Tensor:
    """Factors of several uses; of a matrix and of its transpose other sides are shared by all vectors."""
    if len(sides) == 1:
        return sides[0]
    vectors = max(side.shape[1] for side in sides)
    return torch.cat([side.expand(-1, vectors, *side.shape[2:]) for side in sides], 2)


def _term(graph: Graph, site: Site, layout: Layout) -> _Term:
    formula = formula_at(graph, site)
    if formula is None:
        raise RuntimeError(f"step {site.step} of the graph has lost its formula")  # another graph than the planned one
    return _Term(site, layout, formula, derived=bool(site.path) and not is_transposed(graph, site))
