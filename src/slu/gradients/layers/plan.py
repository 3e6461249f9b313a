"""How the gradients of every parameter are found in a recorded batch: by which formulas, or the general way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from slu.gradients.layers.formula import Formula
from slu.gradients.layers.graph import Graph
from slu.gradients.layers.layout import Layout, colours, find
from slu.gradients.layers.moves import may_move
from slu.gradients.layers.recording import Recording
from slu.gradients.layers.uses import Site, climb, formula
from slu.seeds import stream


@dataclass(frozen=True)
class Plan:
    """Formulas by parameter.

    Attributes:
        terms: For each parameter that has formulas the sites whose gradients add up to its own, and
            their layouts; none for one that outputs do not depend on.
        general: The other parameters.
        sure: Whether the layouts hold for every batch of the same signature.
    """

    terms: Mapping[str, tuple[tuple[Site, Layout], ...]]
    general: tuple[str, ...]
    sure: bool

    @property
    def steps(self) -> list[int]:
        """The steps at whose results gradients are needed."""
        return sorted({site.step for terms in self.terms.values() for site, _ in terms})

    def speaks(self, name: str, probe: Probe) -> bool:
        """Whether any sample of the probed batch may have a gradient in a parameter."""
        return any(bool(probe.plain[site.step].any()) for site, _ in self.terms[name])

    def without(self, names: set[str]) -> Plan:
        """The same with some parameters gone over to the general way."""
        if not names:
            return self
        kept = {name: terms for name, terms in self.terms.items() if name not in names}
        return Plan(kept, (*self.general, *(name for name in self.terms if name in names)), self.sure)


@dataclass(frozen=True)
class Probe:
    """A backward pass with arbitrary vectors, and how to colour its samples.

    Attributes:
        vectors: (b, t).
        colours: (b,) by which samples are told apart.
        plain: By step, gradients in its result.
    """

    vectors: Tensor
    colours: Tensor
    plain: Mapping[int, Tensor]

    @property
    def coloured_vectors(self) -> Tensor:
        """(b, t)."""
        return self.vectors * self.colours[:, None]


def make(recording: Recording) -> tuple[Plan, Probe]:
    """The plan of a batch, and the probe it rests on.

    Cost: two backward passes; for a single sample one.
    """
    graph, points = recording.graph, recording.points
    steps = candidates(recording)
    probe = _probe(recording, steps)
    coloured = probe.plain if points == 1 else _pulled(recording, steps, probe.coloured_vectors)
    layouts: dict[tuple[int, int], Layout | None] = {}

    def layout(site: Site) -> Layout | None:
        key = (site.step, site.operand)
        if key not in layouts:
            known = formula(graph, site) if site.step in probe.plain else None
            layouts[key] = None if known is None else _layout(known, probe, coloured[site.step], site.step)
        return layouts[key]

    terms: dict[str, tuple[tuple[Site, Layout], ...]] = {}
    for name in recording.leaves:
        found = _terms(graph, name, layout)
        if found is not None:
            terms[name] = found
    general = tuple(name for name in recording.leaves if name not in terms)
    doubt = may_move(graph) or any(found is not None and not found.sure for found in layouts.values())
    return Plan(terms, general, sure=points == 1 or not doubt), probe


def candidates(recording: Recording) -> list[int]:
    """Steps that have a formula for some parameter, if only their rows can be told apart."""
    graph, points = recording.graph, recording.points
    found: set[int] = set()

    def look(site: Site) -> bool:
        known = formula(graph, site)
        if known is not None:
            shape = graph.shape((site.step, 0))
            rows = known.rows(torch.empty(shape, device="meta")).shape[0] if prod(shape) else 0
            if rows and rows % points == 0:
                found.add(site.step)
                return points == 1
        return False

    for name in graph.leaves:
        climb(graph, name, look)
    return sorted(found)


def _probe(recording: Recording, steps: list[int]) -> Probe:
    outputs = recording.outputs
    # Arbitrary, so that no output and no sample is left out; the same in every run.
    drawn = torch.randn(outputs.shape, generator=stream(0, "probe"), dtype=torch.float64)
    vectors = drawn.to(outputs.device, outputs.dtype)
    scales = colours(recording.points).to(outputs.device, outputs.dtype)
    return Probe(vectors, scales, _pulled(recording, steps, vectors))


def _pulled(recording: Recording, steps: list[int], vectors: Tensor) -> dict[int, Tensor]:
    return dict(zip(steps, recording.pull([(step, 0) for step in steps], vectors), strict=True))


def _layout(known: Formula, probe: Probe, coloured: Tensor, step: int) -> Layout | None:
    with torch.no_grad():
        return find(known.rows(probe.plain[step]), known.rows(coloured), probe.colours.double())


def _terms(graph: Graph, name: str, layout: Callable[[Site], Layout | None]) -> tuple[tuple[Site, Layout], ...] | None:
    if name not in graph.leaves:
        return ()
    terms: list[tuple[Site, Layout]] = []

    def settled(site: Site) -> bool:
        found = layout(site)
        if found is not None:
            terms.append((site, found))
        return found is not None

    return tuple(terms) if climb(graph, name, settled) else None
