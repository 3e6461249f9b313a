"""Sketched Lanczos, the paper's algorithm, as a fit that can be interrupted."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slu.artifacts import stored
from slu.artifacts.checkpoint import Snapshot
from slu.artifacts.records import stored_fingerprint
from slu.budgets import Cost, Size, Sketched, sketched_lanczos
from slu.checks import whole
from slu.core.scaling import Scaling
from slu.core.settings import Task
from slu.core.state import FittedState
from slu.curvature import Curvature, warn_of_probabilities
from slu.errors import SettingError
from slu.krylov import Operator, State, Step, Tridiagonal, low_memory, preconditioned, resumed, start_vector
from slu.progress import Bar
from slu.subspace import SketchedVectors


@dataclass(frozen=True)
class Lanczos:
    """k steps of Lanczos with vectors that are sketched and freed: k passes over the data.

    Args:
        precondition: k₀ of the k steps that are kept in full (k₀ p numbers while fitting) to hold off ghosts.
        keep: None for a rank-revealing basis; 0.9 for what the paper's authors run, which also keeps noise directions
            where steps were lost to ghosts.

    Cost: k passes, each about 5/3 of a training epoch's gradients; 4 p + s (k + 1) numbers.

    Numerics: see `slu.krylov.low_memory` on ghosts and `slu.subspace.reveal` on rank.
    """

    precondition: int = 0
    keep: float | None = None

    def __post_init__(self) -> None:
        whole("precondition", self.precondition)
        if self.keep is not None and not 0 < self.keep <= 1:
            raise SettingError(f"keep must be a share in (0, 1], got {self.keep}")
        if self.keep is not None and self.precondition:
            raise SettingError(
                "keep weighs by Ritz values that a preconditioned run does not have; give one of the two"
            )

    def for_fit(self, rank: int, curvature: str) -> Lanczos:
        """The solver itself, if it suits the rank; it solves for any curvature."""
        del curvature
        if not 0 <= self.precondition <= rank:
            raise SettingError(f"precondition must lie between 0 and the rank {rank}, got {self.precondition}")
        return self

    def growth(self, rank: int) -> float:
        """Numbers that a fit holds more with every number that is kept, at least."""
        del rank
        return 1.0

    def rows_per_point(self, curvature: str, outputs: int) -> float:
        """The rank of a point's part of the curvature, at most; that of the Hessian has no bound but p."""
        return {"ggn": outputs, "hessian": math.inf}.get(curvature, 1)

    def header(self) -> dict[str, Any]:
        """As plain data, for a file."""
        return {"kind": "lanczos", **dataclasses.asdict(self)}

    def cost(self, rank: int, sketch: Sketched, size: Size, curvature: str) -> Cost:
        """Bytes and passes; products with the Hessian take more memory."""
        choices = {"keep": self.keep is not None, "hessian": curvature == "hessian"}
        return sketched_lanczos(rank, sketch, size, precondition=self.precondition, **choices)

    def solve(self, task: Task) -> FittedState:
        """The state of the data; the loader is read once per step."""
        fit = task.settings
        data = fit.network, fit.likelihood, task.loader
        curvature = Curvature(*data, kind=fit.curvature, seed=fit.seed, processes=task.processes)
        operator = curvature if task.scale is None else ScaledOperator(curvature, task.scale)
        vectors = SketchedVectors(fit.rank, task.sketch)
        snapshot = task.run.restore(in_order=False)
        with task.run.reading():
            state = None if snapshot is None else _restored(snapshot, vectors, curvature, self.precondition)
        steps = self._steps(operator, state, curvature, task)
        with task.run.watching(), Bar("fit", fit.rank, task.progress, done=len(vectors.tridiagonal)) as bar:
            for step in _allowed(steps, curvature, task):
                vectors.add(step)
                if step.state is not None:
                    task.run.note(_Snapshot(vectors, step.state, curvature))
                bar.advance()
        subspace = vectors.subspace(self.keep)
        return FittedState(subspace, curvature.points, curvature.passes, task.run.seconds, scale=task.scale)

    def _steps(self, operator: Operator, state: State | None, curvature: Curvature, task: Task) -> Iterator[Step]:
        rank, seed = task.settings.rank, task.settings.seed
        if state is not None:
            return resumed(operator, state, min(rank, curvature.rank_bound))
        start = start_vector(operator, seed)
        if self.precondition:
            return preconditioned(operator, start, rank, self.precondition)
        return low_memory(operator, start, rank)


class ScaledOperator:
    """diag(d) G diag(d) as an operator.

    Cost: that of G, and one vector of length p.
    """

    def __init__(self, operator: Operator, scale: Scaling) -> None:
        self._operator = operator
        self._scale = scale
        self.shape = operator.shape
        self.dtype = operator.dtype
        self.device = operator.device

    def __matmul__(self, vector: Tensor) -> Tensor:
        """For vectors (p,)."""
        product = self._operator @ self._scale.scaled(0, vector)
        return self._scale.scaled(0, product, out=product)


def _allowed(steps: Iterator[Step], curvature: Curvature, task: Task) -> Iterator[Step]:
    """The same steps; refused after the first if the data cannot carry a given rank, ended at n·t else."""
    rank, kind = task.settings.rank, task.settings.curvature
    for place, step in enumerate(steps):
        if not place:
            task.check_shards()
            if curvature.probabilities:
                warn_of_probabilities()
        if rank > curvature.rank_bound and task.settings.rank_given:
            raise SettingError(
                f"rank {rank} is above what the data allow: {curvature.points} points of {curvature.outputs} "
                f"outputs give a curvature ({kind}) of rank {curvature.rank_bound} at most. "
                "Lower the rank, or fit on more points"
            )
        yield step
        if step.state is not None and step.state.count >= curvature.rank_bound:
            return


@dataclass(frozen=True)
class _Snapshot:
    """The state of the recurrence and what was sketched so far, taken when it is written.

    Cost: 2 p + k₀ p numbers and the s numbers of each step so far, none of them copied.
    """

    vectors: SketchedVectors
    state: State
    curvature: Curvature

    def __call__(self) -> Snapshot:
        state, tridiagonal, seen = self.state, self.vectors.tridiagonal, self.curvature.seen
        assert state.previous is not None and seen is not None  # a step was done
        header = {
            "alphas": tridiagonal.alphas[: state.count],
            "betas": tridiagonal.betas[: state.count],
            "removed": [each.tolist() for each in tridiagonal.removed[: state.count]],
            "scale": state.scale,
            "hold": len(state.held),
            "data": dataclasses.asdict(seen) if seen.points else None,
            "points": self.curvature.points,
            "outputs": self.curvature.outputs,
            "passes": state.count,
        }
        tensors = {
            "rows": self.vectors.rows[: state.count],
            "vector": state.vector,
            "previous": state.previous,
            "held": state.held[: state.count],
        }
        return tensors, header


def _restored(snapshot: Snapshot, vectors: SketchedVectors, curvature: Curvature, hold: int) -> State:
    """Bring vectors and curvature to where an earlier run stopped; DamagedFileError where none did."""
    tensors, header = snapshot
    alphas = stored.numbers(header, "alphas")
    steps, p = len(alphas), curvature.shape[0]
    betas = stored.numbers(header, "betas", steps)
    removed = stored.rows(header, "removed", steps)
    if not 1 <= steps <= vectors.count or stored.whole(header, "passes") != steps or min(betas) <= 0:
        raise stored.wrong(
            "passes", header["passes"], f"1 to {vectors.count} steps, as many as alphas and betas above 0"
        )
    if stored.whole(header, "hold") != hold:
        raise stored.wrong("hold", header["hold"], str(hold))

    def read(name: str, *shape: int) -> Tensor:
        return stored.tensor(tensors, name, shape, curvature.dtype).to(curvature.device)

    tridiagonal = Tridiagonal(alphas, betas, [np.array(stored.numbers(removed, place)) for place in removed])
    held = torch.empty(hold, p, dtype=curvature.dtype, device=curvature.device)
    held[:steps] = read("held", min(steps, hold), p)
    state = State(
        count=steps,
        vector=read("vector", p),
        previous=read("previous", p),
        beta=betas[-1],
        scale=stored.number(header, "scale", least=0.0),
        held=held,
    )
    vectors.restore(read("rows", steps, vectors.rows.shape[1]), tridiagonal, state.vector)
    outputs = stored.whole(header, "outputs", least=1)
    # None for a process that had written nothing, and goes on from the step of another.
    seen = None if stored.field(header, "data") is None else stored_fingerprint(header)
    points = stored.whole(header, "points", least=1) if seen is None or "points" in header else seen.points
    curvature.expect(seen, outputs, steps, points)
    return state
