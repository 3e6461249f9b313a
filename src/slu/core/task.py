"""What a solver of SLU is given: everything from which a subspace in sketch space is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from slu.artifacts.checkpoint import CheckpointedRun
from slu.gradients import Network
from slu.likelihoods import Likelihood
from slu.sketches import Sketch


@dataclass(frozen=True)
class Task:
    """One fit.

    Attributes:
        network, likelihood, loader: What is differentiated, what its outputs mean, and the data.
        sketch: S.
        rank: k.
        rank_given: Whether the user gave it; if not, the data may end it early.
        curvature: A kind of the table CURVATURES.
        seed: Of start vectors, mixtures of labels and sampled labels.
        gradient_memory: Numbers of gradients that may be in memory at a time.
        run: Where the fit is written down.
        progress: Whether to show a bar.
        scale: (p,) factors by which every gradient is multiplied first, or None.
    """

    network: Network
    likelihood: Likelihood
    loader: Any
    sketch: Sketch
    rank: int
    rank_given: bool
    curvature: str
    seed: int
    gradient_memory: int
    run: CheckpointedRun
    progress: bool | None
    scale: Tensor | None = None
