"""Sketched Lanczos, the paper's algorithm, as a fit that can be interrupted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from slu.budgets import Choices, Cost, Size
from slu.core.checkpoint import Snapshot
from slu.core.scaling import ScaledOperator
from slu.core.shape import slu_cost
from slu.core.solvers.task import Task
from slu.curvature import Curvature
from slu.data import Fingerprint
from slu.errors import SettingError
from slu.krylov import Operator, State, Step, Tridiagonal, low_memory, preconditioned, resumed, start_vector
from slu.progress import Bar
from slu.sketches import SketchSpec
from slu.subspace import SketchedSubspace, SketchedVectors


@dataclass(frozen=True)
class LanczosSolver:
    """k steps of Lanczos whose vectors are sketched and let go: k passes over the data.

    Attributes:
        rank: k.
        rank_from_budget: Whether it was chosen and not given: then the data may end it early.
        precondition: k₀ of the steps that are kept in full.
        keep: None for a rank-revealing basis, or the share of singular vectors that is kept.
        hessian: Whether products are with the Hessian, which takes more memory.

    Cost: k passes, each about 5/3 of a training epoch's gradients; 4 p + s (k + 1) numbers.

    Numerics: see `slu.krylov.low_memory` on ghosts and `slu.subspace.reveal` on rank.
    """

    rank: int
    rank_from_budget: bool
    precondition: int
    keep: float | None
    hessian: bool

    def __post_init__(self) -> None:
        if not 0 <= self.precondition <= self.rank:
            raise SettingError(f"precondition must lie between 0 and the rank {self.rank}, got {self.precondition}")
        if self.keep is not None and not 0 < self.keep <= 1:
            raise SettingError(f"keep must be a share in (0, 1], got {self.keep}")
        if self.keep is not None and self.precondition:
            raise SettingError(
                "keep weighs by Ritz values that a preconditioned run does not have; give one of the two"
            )

    @property
    def growth(self) -> float:
        """Numbers that a fit holds more with every number that is kept, at least."""
        return 1.0

    def settings(self) -> dict[str, Any]:
        """As SLU's constructor takes them."""
        return {"solver": "lanczos", "precondition": self.precondition, "keep": self.keep}

    def cost(self, sketch: SketchSpec, size: Size) -> Cost:
        """Bytes and passes."""
        return slu_cost(self.rank, sketch, size, Choices(self.precondition, self.keep is not None, self.hessian))

    def solve(self, task: Task) -> SketchedSubspace:
        """The subspace of the data; the loader is read once a step."""
        curvature = Curvature(task.network, task.likelihood, task.loader, kind=task.curvature, seed=task.seed)
        operator = curvature if task.scale is None else ScaledOperator(curvature, task.scale)
        vectors = SketchedVectors(self.rank, task.sketch)
        found = task.run.restore()
        state = None if found is None else _restored(found, vectors, curvature)
        steps = self._steps(operator, state, curvature, task.seed)
        with task.run.watching(), Bar("fit", self.rank, task.progress, done=len(vectors.tridiagonal)) as bar:
            for step in self._allowed(steps, curvature, task.curvature):
                vectors.add(step)
                if step.state is not None:
                    task.run.note(_Snapshot(vectors, step.state, curvature))
                bar.advance()
        subspace = vectors.subspace(self.keep)
        diagnostics = dataclasses.replace(
            subspace.diagnostics, points=curvature.points, passes=curvature.passes, seconds=task.run.seconds
        )
        return dataclasses.replace(subspace, diagnostics=diagnostics)

    def _steps(self, operator: Operator, state: State | None, curvature: Curvature, seed: int) -> Iterator[Step]:
        if state is not None:
            return resumed(operator, state, min(self.rank, curvature.rank_bound))
        start = start_vector(operator, seed)
        if self.precondition:
            return preconditioned(operator, start, self.rank, self.precondition)
        return low_memory(operator, start, self.rank)

    def _allowed(self, steps: Iterator[Step], curvature: Curvature, kind: str) -> Iterator[Step]:
        """The same steps; refused after the first if the data cannot carry a given rank, ended at n·t else."""
        for step in steps:
            if self.rank > curvature.rank_bound and not self.rank_from_budget:
                raise SettingError(
                    f"rank {self.rank} is above what the data allow: {curvature.points} points of {curvature.outputs} "
                    f"outputs give a curvature ({kind}) of rank {curvature.rank_bound} at most. "
                    "Lower the rank, fit on more points, or hold none out (calibration=False)"
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
        state, found, seen = self.state, self.vectors.tridiagonal, self.curvature.seen
        assert state.previous is not None and seen is not None  # a step was done
        header = {
            "alphas": found.alphas[: state.count],
            "betas": found.betas[: state.count],
            "removed": [each.tolist() for each in found.removed[: state.count]],
            "scale": state.scale,
            "hold": len(state.held),
            "data": dataclasses.asdict(seen),
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


def _restored(found: Snapshot, vectors: SketchedVectors, curvature: Curvature) -> State:
    """Bring vectors and curvature to where an earlier run stopped."""
    tensors, header = found
    device = curvature.device
    tridiagonal = Tridiagonal(header["alphas"], header["betas"], [np.array(each) for each in header["removed"]])
    held = torch.empty(header["hold"], curvature.shape[0], dtype=curvature.dtype, device=device)
    held[: len(tensors["held"])] = tensors["held"].to(device)
    state = State(
        count=len(tridiagonal),
        vector=tensors["vector"].to(device),
        previous=tensors["previous"].to(device),
        beta=header["betas"][-1],
        scale=header["scale"],
        held=held,
    )
    vectors.restore(tensors["rows"], tridiagonal, state.vector)
    curvature.expect(Fingerprint(**header["data"]), header["outputs"], header["passes"])
    return state
