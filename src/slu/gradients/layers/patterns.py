"""Which steps of a graph have a formula, where each parameter is used, and which formulas its gradients have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from slu.gradients.layers.convolution import batch_norm, convolution, group_norm, layer_norm
from slu.gradients.layers.formulas import Formula, Rule, Use, add, addmm, embedding, expand, mm, mul, prelu, sub
from slu.gradients.layers.graph import Graph, Node, Place, Recording, may_reorder
from slu.gradients.layers.verification import Layout, example_scales, find_layout
from slu.seeds import stream

RULES: dict[str, Rule] = {
    "AddmmBackward0": addmm,
    "MmBackward0": mm,
    "ConvolutionBackward0": convolution,
    "EmbeddingBackward0": embedding,
    "NativeLayerNormBackward0": layer_norm,
    "NativeGroupNormBackward0": group_norm,
    "NativeBatchNormBackward0": batch_norm,
    "AddBackward0": add,
    "SubBackward0": sub,
    "MulBackward0": mul,
    "ExpandBackward0": expand,
    "PreluKernelBackward0": prelu,
}
"""From a step's name in autograd's graph to its formula; a new kind of layer is a row here."""


@dataclass(frozen=True)
class Site:
    """A use of a parameter by a step that also takes examples' data.

    Attributes:
        parameter: Its name.
        step: The step that takes it.
        operand: As which operand.
        path: Tensors made from the parameter alone on the path to the step, the last of which is the operand.
    """

    parameter: str
    step: int
    operand: int
    path: tuple[Place, ...]


def formula_at(graph: Graph, site: Site) -> Formula | None:
    """A site's formula for this batch; None where there is none."""
    node = graph.nodes[site.step]
    rule = RULES.get(node.name())
    operand = graph.operands[site.step][site.operand]
    if rule is None or operand is None:
        return None
    outputs = graph.shape((site.step, 0))
    return rule(Use(node, site.operand, graph.shape(operand), outputs, is_transposed(graph, site)))


def is_transposed(graph: Graph, site: Site) -> bool:
    """Whether the operand is the parameter's transpose and nothing else; formulas take that into themselves."""
    return (
        len(site.path) == 1
        and len(graph.shape(site.path[0])) == 2
        and _transposes(graph.nodes[site.path[0][0]])
        and graph.nodes[site.step].name() in ("AddmmBackward0", "MmBackward0")
    )


def _transposes(node: Node) -> bool:
    """Whether a step exchanges two dimensions. Negative ones are saved as very large numbers, which are odd too."""
    if node.name() == "TransposeBackward0":
        return (node._saved_dim0 - node._saved_dim1) % 2 == 1
    if node.name() == "PermuteBackward0":
        return [place % 2 for place in node._saved_dims] == [1, 0]
    return node.name() == "TBackward0"


def visit_uses(graph: Graph, parameter: str, settled: Callable[[Site], bool]) -> bool:
    """Visit every step that takes a parameter; where that does not settle it, also the steps that follow.

    A step with one differentiable operand may come between: what it makes of the parameter alone
    (its transpose, a slice, rows of a table) is then the operand of a later step, and gradients in it are
    pulled back to the parameter.

    Returns:
        Whether every path to the outputs was settled at some step.
    """
    waiting: list[tuple[Place, tuple[Place, ...]]] = [((graph.leaves[parameter], 0), ())]
    every = True
    while waiting:
        place, path = waiting.pop()
        for step, operand in graph.users.get(place, ()):
            if settled(Site(parameter, step, operand, path)):
                continue
            further = graph.outputs(step) if graph.unary(step) else []
            every = every and bool(further)
            waiting += [(each, (*path, each)) for each in further]
    return every


def steps_without_formula(graph: Graph, parameter: str) -> list[str]:
    """The steps that take a parameter, or what was made of it alone, and have no formula: why it has none."""
    if parameter not in graph.leaves:
        return []
    lacking: dict[str, None] = {}

    def settled(site: Site) -> bool:
        known = formula_at(graph, site) is not None
        if not known and not graph.unary(site.step):
            lacking[graph.nodes[site.step].name()] = None
        return known

    visit_uses(graph, parameter, settled)
    return list(lacking)


Terms = tuple[tuple[Site, Layout], ...]
"""Sites whose gradients add up to a parameter's, and which rows there belong to which example."""


@dataclass(frozen=True)
class Plan:
    """Formulas by parameter.

    Attributes:
        terms: Of each parameter that has formulas; none for one that outputs do not depend on.
        general: The other parameters, whose gradients come from the general fallback.
        reusable: Whether the layouts hold for every batch of the same signature.
    """

    terms: Mapping[str, Terms]
    general: tuple[str, ...]
    reusable: bool

    @property
    def steps(self) -> list[int]:
        """The steps at whose results gradients are needed."""
        return self.steps_of(self.terms)

    def steps_of(self, names: Iterable[str]) -> list[int]:
        """Those for some of the parameters."""
        return sorted({site.step for name in names for site, _ in self.terms[name]})

    def has_gradient(self, name: str, probe: Probe) -> bool:
        """Whether any example of the probed batch may have a gradient in a parameter."""
        return any(bool(probe.gradients[site.step].any()) for site, _ in self.terms[name])

    def resized(self, examples: int) -> Plan:
        """The same for a batch of another number of examples."""
        terms = {
            name: tuple((site, replace(layout, examples=examples)) for site, layout in of_name)
            for name, of_name in self.terms.items()
        }
        return replace(self, terms=terms)

    def without(self, names: set[str]) -> Plan:
        """The same with some parameters left to the general fallback."""
        if not names:
            return self
        kept = {name: terms for name, terms in self.terms.items() if name not in names}
        return Plan(kept, (*self.general, *(name for name in self.terms if name in names)), self.reusable)


@dataclass(frozen=True)
class Probe:
    """A backward pass with arbitrary vectors.

    Attributes:
        vectors: (b, t).
        gradients: By step, those in its result.
    """

    vectors: Tensor
    gradients: Mapping[int, Tensor]


def make_plan(recording: Recording) -> tuple[Plan, Probe]:
    """The plan of a batch, and the probe it rests on.

    Cost: two backward passes; for a single example one. The gradients of the first in the steps' results are held,
    those of the second one step after the other.
    """
    examples, outputs = recording.examples, recording.outputs
    formulas = candidates(recording)  # all before a backward pass, in which it may be too late
    steps = sorted(formulas)
    # Arbitrary, so that no output and no example is left out; the same in every run.
    drawn = torch.randn(outputs.shape, generator=stream(0, "probe"), dtype=torch.float64)
    vectors = drawn.to(outputs.device, outputs.dtype)
    pulled, _ = recording.pull_back([(step, 0) for step in steps], vectors)
    probe = Probe(vectors, dict(zip(steps, pulled, strict=True)))
    scales = example_scales(examples).to(outputs.device, outputs.dtype)
    layouts: dict[tuple[int, int], Layout | None] = {}

    def compare(step: int, scaled: Tensor) -> None:
        for operand, formula in formulas[step].items():
            plain = formula.rows(probe.gradients[step])
            layouts[step, operand] = find_layout(plain, formula.rows(scaled), scales.double())

    with torch.no_grad():
        if examples > 1:
            _visit(recording, steps, vectors * scales[:, None], compare)
        else:
            list(map(compare, steps, pulled))
    plan = _plan(recording, lambda site: layouts.get((site.step, site.operand)))
    doubtful = may_reorder(recording.graph) or not all(at.unique for terms in plan.terms.values() for _, at in terms)
    return replace(plan, reusable=examples == 1 or not doubtful), probe


def assumed_plan(recording: Recording) -> Plan:
    """The plan of a batch if the rows of every step are laid out with examples first, for estimates.

    Cost: arithmetic; no backward pass.
    """
    graph, examples = recording.graph, recording.examples

    def layout_at(site: Site) -> Layout | None:
        rows = _row_count(graph, site)
        return Layout(1, examples, rows // examples) if rows and rows % examples == 0 else None

    return _plan(recording, layout_at)


def resized_plan(plan: Plan, signature: tuple[Any, ...], recording: Recording) -> Plan | None:
    """The plan of a batch with this signature for one of another number of examples; None where more than that differs.

    Shapes do not tell half of the examples from half of their length, so the rows of every use must add up as well.
    """
    before, _, shapes = signature
    graph = recording.graph
    if not all(map(_same_but_examples(before, recording.examples), shapes, graph.shapes)):
        return None
    plan = plan.resized(recording.examples)
    every = (use for terms in plan.terms.values() for use in terms)
    fits = all(_row_count(graph, site) == layout.outer * layout.examples * layout.inner for site, layout in every)
    return plan if fits else None


def _same_but_examples(before: int, now: int) -> Callable[[tuple[Any, ...], tuple[Any, ...]], bool]:
    """Whether the shapes of a step in batches of so many examples differ in the dimensions of examples alone."""

    def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
        *shapes, offset = one
        *others, other_offset = other
        return offset == other_offset and len(shapes) == len(others) and all(map(proportional, shapes, others))

    def proportional(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return len(one) == len(other) and all(a == b or a * now == b * before for a, b in zip(one, other, strict=True))

    return same


def _row_count(graph: Graph, site: Site) -> int:
    """R, the rows of a step's result as its formula arranges them; 0 where there is none."""
    formula, shape = formula_at(graph, site), graph.shape((site.step, 0))
    return 0 if formula is None or not prod(shape) else formula.rows(torch.empty(shape, device="meta")).shape[0]


def candidates(recording: Recording) -> dict[int, dict[int, Formula]]:
    """By step and operand, formulas for parameters, provided that their rows can be assigned to examples."""
    graph, examples = recording.graph, recording.examples
    formulas: dict[int, dict[int, Formula]] = {}

    def look(site: Site) -> bool:
        rows = _row_count(graph, site)
        formula = formula_at(graph, site)
        if formula is not None and rows and rows % examples == 0:
            formulas.setdefault(site.step, {})[site.operand] = formula
            return examples == 1
        return False

    for name in graph.leaves:
        visit_uses(graph, name, look)
    return formulas


def _visit(recording: Recording, steps: list[int], vectors: Tensor, visit: Callable[[int, Tensor], None]) -> None:
    """Gradients of Σ u·f in the results of steps, each visited as it is computed and then freed.

    Cost: one backward pass, which ends at steps beneath which there is no other; the gradients at these are held.
    """
    graph, above, waiting = recording.graph, set[int](), list(steps)
    while waiting:
        users = {user for place in graph.outputs(waiting.pop()) for user, _ in graph.users[place]} - above
        above |= users
        waiting += users

    def hook(step: int, gradients: tuple[Tensor | None, ...]) -> None:
        if gradients[0] is not None:
            visit(step, gradients[0])

    handles = [graph.nodes[step].register_prehook(partial(hook, step)) for step in above.intersection(steps)]
    last = [step for step in steps if step not in above]
    try:
        pulled, _ = recording.pull_back([(step, 0) for step in last], vectors)
    finally:  # or the hooks would keep the graph, and with it the batch's activations
        for handle in handles:
            handle.remove()
    for step, gradient in zip(last, pulled, strict=True):
        visit(step, gradient)


def _plan(recording: Recording, layout_at: Callable[[Site], Layout | None]) -> Plan:
    every = {name: _terms(recording.graph, name, layout_at) for name in recording.leaves}
    planned = {name: terms for name, terms in every.items() if terms is not None}
    return Plan(planned, tuple(name for name in every if name not in planned), reusable=False)


def _terms(graph: Graph, name: str, layout_at: Callable[[Site], Layout | None]) -> Terms | None:
    if name not in graph.leaves:
        return ()
    terms: list[tuple[Site, Layout]] = []

    def settled(site: Site) -> bool:
        layout = layout_at(site)
        if layout is not None:
            terms.append((site, layout))
        return layout is not None

    return tuple(terms) if visit_uses(graph, name, settled) else None
