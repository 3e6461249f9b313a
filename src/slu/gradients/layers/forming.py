"""Gradients of single samples put together from the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slu.gradients.layers.formula import Formula, Splitting, Take
from slu.gradients.layers.graph import Graph
from slu.gradients.layers.layout import Layout
from slu.gradients.layers.plan import Plan
from slu.gradients.layers.recording import Recording
from slu.gradients.layers.uses import Site, formula, turned


@dataclass(frozen=True)
class _Term:
    """One of the formulas whose gradients add up to a parameter's, and whether they are of something made from it."""

    site: Site
    layout: Layout
    known: Formula
    above: bool


class Formed:
    """The gradients that a plan gives for a recorded batch.

    Args:
        recording: The batch.
        plan: Of this recording, or of one of the same signature.
        dtype: Of the gradients.
    """

    def __init__(self, recording: Recording, plan: Plan, dtype: torch.dtype) -> None:
        self._recording = recording
        self.dtype = dtype
        self._terms = {
            name: [_term(recording.graph, site, layout) for site, layout in terms] for name, terms in plan.terms.items()
        }

    def splits(self, name: str) -> bool:
        """Whether gradients in one parameter can be formed a few rows of its first dimension at a time."""
        return all(not term.above and isinstance(term.known, Splitting) for term in self._terms[name])

    def gradient(
        self,
        name: str,
        cotangents: Mapping[int, Sequence[Tensor]],
        samples: slice,
        into: Tensor | None = None,
        *,
        rows: slice | None = None,
    ) -> Tensor:
        """(c, g, ...) gradients of some samples in one parameter.

        Args:
            name: The parameter.
            cotangents: By step, gradients in its result for g vectors.
            samples: Which.
            into: Where they may be written to.
            rows: Of the parameter's first dimension, where it `splits`; None for all.
        """
        total: Tensor | None = None
        with torch.no_grad():
            for term in self._terms[name]:
                take = self._take(term.layout, samples)
                known = term.known if rows is None or not isinstance(term.known, Splitting) else term.known.part(rows)
                found = known.gradient([take(known.rows(each)) for each in cotangents[term.site.step]], take)
                if not isinstance(found, Tensor):
                    found = found.form(None if term.above or total is not None else into)
                found = self._brought_down(term.site, found) if term.above else found
                total = found if total is None else total.add_(found)
        if total is None:  # of a parameter that outputs do not depend on
            leaf = self._recording.leaves[name]
            shape = leaf.shape if rows is None else leaf[rows].shape
            vectors = len(next(iter(cotangents.values())))
            total = leaf.new_zeros(samples.stop - samples.start, vectors, *shape, dtype=self.dtype)
        return total

    def _take(self, layout: Layout, samples: slice) -> Take:
        def take(rows: Tensor) -> Tensor:
            taken = layout.take(rows, samples)
            return taken.to(self.dtype) if taken.is_floating_point() else taken

        return take

    def _brought_down(self, site: Site, found: Tensor) -> Tensor:
        """From gradients in what was made of the parameter to gradients in the parameter."""
        leaf, above = self._recording.leaves[site.leaf], self._recording.graph.edge(site.way[-1])
        flat = found.flatten(0, 1).to(leaf.dtype)
        (down,) = torch.autograd.grad(above, leaf, flat, is_grads_batched=True, retain_graph=True)
        return down.unflatten(0, found.shape[:2]).to(self.dtype).contiguous()


def _term(graph: Graph, site: Site, layout: Layout) -> _Term:
    found = formula(graph, site)
    if found is None:
        raise RuntimeError(f"step {site.step} of the graph has lost its formula")  # another graph than planned for
    return _Term(site, layout, found, above=bool(site.way) and not turned(graph, site))
