"""The settings of a fit, and the task that a solver is given."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Protocol

from slu.artifacts.artifact import described_forward
from slu.artifacts.checkpoint import CheckpointedRun
from slu.budgets import Cost, Size, Sketched, size_for
from slu.core.distances import Folding
from slu.core.scaling import Scaling
from slu.core.state import FittedState
from slu.curvature import CURVATURES
from slu.data import ReadAhead, Shard
from slu.gradients import FactorSize, Forward, Network
from slu.likelihoods import Likelihood, describe
from slu.parameters import fingerprint
from slu.processes import ALONE, Processes
from slu.sketches import SKETCHES, Sketch, SketchSpec


@dataclass(frozen=True, eq=False)
class Settings:
    """Everything that decides the numbers of a fit but the data.

    Attributes:
        network, likelihood: What is differentiated, and what its outputs mean.
        rank: k.
        rank_given: Whether the user gave it; if not, the data may end it early.
        sketch: The sketch's spec.
        solver, scale, estimator, ridge, curvature, seed: As `SLU` takes them, settled.
        gradient_memory: Numbers of gradients that may be in memory at a time.
        layers: The layers whose inputs may be kept, as far as the model tells without a batch; a fit keeps no more.
    """

    network: Network
    likelihood: Likelihood
    rank: int
    rank_given: bool
    sketch: SketchSpec
    solver: Solver
    scale: Scale | None
    estimator: str
    ridge: float
    curvature: str
    gradient_memory: int
    seed: int
    layers: Folding

    def cost(self, outputs: int | None = None, batch: int | Any = 1) -> Cost:
        """As `SLU.cost`."""
        size = size_for(self.network, outputs, batch, self.gradient_memory)
        return fit_cost(size, self.rank, self.sketch, self.solver, self.scale, self.layers, self.curvature)

    @property
    def by_targets(self) -> bool:
        """Whether the curvature depends on the data's targets: points are then held out by these as well."""
        return CURVATURES[self.curvature] == "targets"

    def least_points(self, outputs: int) -> int:
        """How many points a given rank needs, with so many outputs."""
        return math.ceil(self.rank / self.solver.rows_per_point(self.curvature, outputs)) if self.rank_given else 0

    def header(self) -> dict[str, Any]:
        """All but the network and the likelihood, as plain data for a file."""
        return {
            "rank": self.rank,
            "seed": self.seed,
            "sketch": {**dataclasses.asdict(self.sketch), "layout": [list(shape) for shape in self.sketch.layout]},
            "estimator": self.estimator,
            "ridge": self.ridge,
            "curvature": self.curvature,
            "solver": self.solver.header(),
            "scale": None if self.scale is None else self.scale.header(),
        }

    def identity(self, calibrated_on: str | None) -> dict[str, Any]:
        """What a running fit belongs to; without calibration estimator and ridge may be chosen anew."""
        plain, forward = self.header(), self.network.own_forward
        estimator, ridge = plain.pop("estimator"), plain.pop("ridge")
        if self.scale is not None:
            plain["scale"] = self.scale.identity()
        return {
            "method": "SLU",
            "params": list(self.network.selection.names),
            **plain,
            "layers": self.layers.numbers,
            "calibration": None if calibrated_on is None else f"{calibrated_on}, read by {estimator}, ridge {ridge}",
            "likelihood": describe(self.likelihood),
            "own_forward": forward is not None,
            "forward": None if forward is None else _code_of(forward),
            "weights": fingerprint(self.network.model),
        }


def _code_of(forward: Forward) -> str:
    """Tells one function from another; its name only where its code cannot be read."""
    described = described_forward(forward)
    return described["name"] if described["hash"] is None else f"code {described['hash']}"


def fit_cost(
    size: Size, rank: int, sketch: SketchSpec, solver: Solver, scale: Scale | None, layers: Folding, curvature: str
) -> Cost:
    """Bytes and passes of a fit to a problem of known size; nothing is built for this."""
    kind, each, matrices = SKETCHES[sketch.kind], size.bytes_each, size.matrices

    def unformed(number: int, factors: FactorSize) -> bool:  # as `slu.core.scaling.unformed`
        scalable = scale is None or (scale.factored and matrices[number][0] > 1)
        return scalable and kind.prefers_factors_of(sketch, number, factors.positions, factors.words)

    def scratch(rows: int) -> int:
        return kind.scratch_of_rows(sketch, rows, factored, each)

    factored = {number for number, factors in size.factored.items() if unformed(number, factors)}
    # Numbers of the user's own are the only scale for which no gradients are computed before.
    checked = scale is not None and scale.header()["kind"] != "own"
    state, block = kind.state_bytes_of(sketch, each), kind.block_of(sketch)
    known = Sketched(sketch.size, state, scratch, scale is not None, checked, block)
    cost = solver.cost(rank, known, size.left_as_factors(factored), curvature)
    cost = layers.added_to(cost, size)  # not while the scale is computed
    return cost if scale is None else scale.added_to(cost, size)


@dataclass(frozen=True)
class Task:
    """One fit: settings, and the data they are fitted to.

    Attributes:
        settings: What is fitted.
        loader: The data, of which the first points may be read ahead.
        sketch: S.
        run: The checkpoint that the fit is written to.
        progress: Whether to show a bar.
        processes: Those that share the data, each with its `shard`; None where one has all.
        scale: By which every gradient is multiplied first, or None.
    """

    settings: Settings
    loader: ReadAhead
    sketch: Sketch
    run: CheckpointedRun
    progress: bool | None
    processes: Processes = ALONE
    shard: Shard | None = None
    scale: Scaling | None = None

    def check_shards(self) -> None:
        """Refuse processes that have read the same points, or no points at all."""
        if self.shard is not None:
            self.shard.check()


class Solver(Protocol):
    """A way from data to a fitted state; `slu.core.solvers` has two."""

    def for_fit(self, rank: int, curvature: str) -> Solver:
        """The solver with what was left open settled, if it suits the rank and the curvature."""
        ...

    def solve(self, task: Task) -> FittedState:
        """The state of the data."""
        ...

    def cost(self, rank: int, sketch: Sketched, size: Size, curvature: str) -> Cost:
        """Bytes and passes."""
        ...

    def rows_per_point(self, curvature: str, outputs: int) -> float:
        """By how much a point can raise the rank of what is solved for."""
        ...

    def growth(self, rank: int) -> float:
        """Numbers that a fit holds more with every number that is kept, at least."""
        ...

    def header(self) -> dict[str, Any]:
        """As plain data, for a file."""
        ...


class Scale(Protocol):
    """Where the numbers of scaled coordinates come from; `slu.core.scales` has three."""

    @property
    def factored(self) -> bool:
        """Whether it is a product of rows and columns, and so scales gradients that are left as factors."""
        ...

    @property
    def passes(self) -> int:
        """Over the data, beside those of the fit."""
        ...

    def compute(self, task: Task) -> Scaling:
        """The scale, from the first points or from all."""
        ...

    def numbers(self, size: Size) -> int:
        """That it keeps."""
        ...

    def added_to(self, cost: Cost, size: Size) -> Cost:
        """The cost of a fit with this scale."""
        ...

    def header(self) -> dict[str, Any]:
        """As plain data, for a file."""
        ...

    def identity(self) -> Any:
        """What tells it from another scale, for a checkpoint."""
        ...
