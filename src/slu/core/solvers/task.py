"""What a solver of SLU is given: everything from which a subspace in sketch space is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from slu.budgets import Cost, Size
from slu.core.checkpoint import CheckpointedRun
from slu.gradients import Network
from slu.likelihoods import Likelihood
from slu.sketches import Sketch, SketchSpec
from slu.subspace import SketchedSubspace


@dataclass(frozen=True)
class Task:
    """One fit.

    Attributes:
        network, likelihood, loader: What is differentiated, what its outputs mean, and the data.
        sketch: S.
        scale: (p,) factors by which every gradient is multiplied first, or None.
        curvature: A kind of the table CURVATURES.
        seed: Of start vectors, mixtures of labels and sampled labels.
        room: Numbers of gradients that may be in flight.
        run: Where the fit is written down.
        progress: Whether to show a bar.
    """

    network: Network
    likelihood: Likelihood
    loader: Any
    sketch: Sketch
    scale: Tensor | None
    curvature: str
    seed: int
    room: int
    run: CheckpointedRun
    progress: bool | None


class Solver(Protocol):
    """Curvature and sketch in, subspace out."""

    def solve(self, task: Task) -> SketchedSubspace:
        """The subspace, its diagnostics complete."""
        ...

    @property
    def growth(self) -> float:
        """Numbers that a fit holds more with every number that is kept, at least."""
        ...

    def settings(self) -> dict[str, Any]:
        """As SLU's constructor takes them."""
        ...

    def cost(self, sketch: SketchSpec, size: Size) -> Cost:
        """Bytes and passes."""
        ...
