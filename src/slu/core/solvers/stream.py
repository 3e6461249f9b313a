"""The same subspace from one pass over the data: one gradient a point, of a random mixture of labels, added up."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slu.budgets import Cost, Size
from slu.core.checkpoint import Snapshot
from slu.core.scaling import scaled
from slu.core.shape import stream_cost
from slu.core.solvers.task import Task
from slu.curvature import RootRows
from slu.data import Fingerprint, batch_count
from slu.errors import SettingError
from slu.gradients import Rows
from slu.progress import Bar
from slu.sketches import Sketch, SketchSpec
from slu.subspace import Diagnostics, Nystrom, SketchedSubspace


@dataclass(frozen=True)
class StreamSolver:
    """One gradient a point, sketched and added to a sum of fixed size.

    Of a point with the factors L (H = L Lᵀ) and J it is g = Jᵀ L ε with random signs ε: a mixture of the columns of
    L, which for classes are the labels beside the predicted one. E Σ g gᵀ = G, so the leading eigenvectors of
    Σ (S g)(S g)ᵀ are those of the sketched curvature: no recurrence, no ghosts. `slu.subspace.Nystrom` finds them
    from products with k + oversampling fixed vectors. The curvature "fisher" has gradients at labels drawn from the
    model instead.

    Attributes:
        rank: k.
        rank_from_budget: Whether it was chosen and not given: then the data may end it early.
        labels_per_point: How many mixtures (for the Fisher, labels) are drawn a point, or "all" for the exact GGN by
            t rows a point.
        oversampling: Vectors beyond the rank.

    Cost: one pass; `labels_per_point` gradients a point. s (k + oversampling) numbers, the sketch's
    state, and the gradients in flight.

    Numerics: see `slu.subspace.Nystrom`.
    """

    rank: int
    rank_from_budget: bool
    labels_per_point: int | str
    oversampling: int

    @property
    def growth(self) -> float:
        """Numbers that a fit holds more with every number that is kept, at least: the usual sum is twice as wide."""
        return 2.0 if self.oversampling == self.rank else 1.0

    def settings(self) -> dict[str, Any]:
        """As SLU's constructor takes them."""
        return {
            "solver": "stream",
            "labels_per_point": self.labels_per_point,
            "oversampling": self.oversampling,
        }

    def cost(self, sketch: SketchSpec, size: Size) -> Cost:
        """Bytes and passes."""
        rows = size.outputs if self.labels_per_point == "all" else int(self.labels_per_point)
        return stream_cost(self.rank, self.rank + self.oversampling, sketch, size, rows)

    def solve(self, task: Task, before: SketchedSubspace | None = None) -> SketchedSubspace:
        """The subspace of the data, and of what an earlier fit saw where its subspace is given."""
        factors = self._factors(task)
        sums = self._sums(task.sketch, task.seed, [] if before is None else [before])
        found = task.run.restore()
        done = None if found is None else _restored(found, sums)
        waiting: list[Tensor] = []

        def take(rows: Rows) -> None:
            sketched = sums.rows.new_zeros(*rows.shape, task.sketch.shape[0])
            for start, values in scaled(rows.pieces, task.scale):
                task.sketch.accumulate(start, values, sketched)
                del values  # or it would stay while the next is put together
            waiting.append(sketched.flatten(0, 1))
            if sum(map(torch.numel, waiting)) > task.room:
                add_up()

        def add_up() -> None:
            # A sum that is being added to must not be written down; so the rows of a batch wait for its end, and
            # whatever interrupts it leaves the batch before.
            task.run.forget()
            for each in waiting:
                sums.add(each)
            waiting.clear()

        def batch_done() -> None:
            add_up()
            task.run.note(_Snapshot(sums, dataclasses.replace(factors.seen)))
            bar.advance()

        with task.run.watching(), Bar("fit", batch_count(task.loader), task.progress) as bar:
            factors.feed(take, batch_done, done=done)
        if before is None:  # an earlier fit had as many gradients as its rank, and these come on top
            self._check_rank(factors)
        earlier = [] if before is None else [before]
        return self._subspace(sums, task.sketch, factors.points, task.run.seconds, earlier)

    def merged(self, parts: Sequence[SketchedSubspace], sketch: Sketch, seed: int) -> SketchedSubspace:
        """One subspace of what several fits saw, each known by its own leading directions."""
        seconds = sum(part.diagnostics.seconds for part in parts)
        return self._subspace(self._sums(sketch, seed, parts), sketch, 0, seconds, parts)

    def _factors(self, task: Task) -> RootRows:
        drawn = self.labels_per_point != "all" and task.curvature != "empirical-fisher"
        draws = int(self.labels_per_point) if drawn else None
        data = (task.network, task.likelihood, task.loader)
        return RootRows(*data, kind=task.curvature, seed=task.seed, draws=draws, max_numbers=task.room)

    def _sums(self, sketch: Sketch, seed: int, parts: Sequence[SketchedSubspace]) -> Nystrom:
        sums = Nystrom(sketch.shape[0], self.rank + self.oversampling, seed, device=sketch.device, dtype=sketch.dtype)
        for part in parts:
            sums.add_eigenpairs(part.diagnostics.ritz_values, part.basis)
            # What that fit had cut off is gone from the sum, but not from the trace.
            kept = float(np.maximum(part.diagnostics.ritz_values, 0.0).sum())
            sums.trace += kept / part.diagnostics.captured - kept
        return sums

    def _subspace(
        self, sums: Nystrom, sketch: Sketch, points: int, seconds: float, earlier: Sequence[SketchedSubspace]
    ) -> SketchedSubspace:
        """Of a sum over some points, and over those of earlier fits; `passes` says how often one of them was read."""
        values, basis = sums.leading(self.rank)
        diagnostics = Diagnostics(
            steps=self.rank,
            effective_rank=len(basis),
            ghosts=0,
            null=self.rank - len(basis),
            orthogonality=float("nan"),
            exhausted=False,
            ritz_values=values,
            residuals=np.full(len(values), np.nan),
            singular_values=np.empty(0),
            points=points + sum(part.diagnostics.points for part in earlier),
            passes=max([1, *(part.diagnostics.passes for part in earlier)]),
            seconds=seconds,
            captured=float(values.sum()) / sums.trace,
        )
        return SketchedSubspace(basis, sketch.correction(len(basis)), diagnostics)

    def _check_rank(self, factors: RootRows) -> None:
        if self.rank > factors.rank_bound and not self.rank_from_budget:
            raise SettingError(
                f"rank {self.rank} is above what the data allow: {factors.points} points gave {factors.rank_bound} "
                "gradients. Lower the rank, fit on more points, hold none out (calibration=False), or draw more "
                "labels_per_point"
            )


@dataclass(frozen=True)
class _Snapshot:
    """The sum and what of the data is in it. Cost: s (k + oversampling) numbers, not copied."""

    sums: Nystrom
    seen: Fingerprint

    def __call__(self) -> Snapshot:
        header = {"data": dataclasses.asdict(self.seen), "count": self.sums.count, "trace": self.sums.trace}
        return {"sums": self.sums.rows}, header


def _restored(found: Snapshot, sums: Nystrom) -> Fingerprint:
    tensors, header = found
    sums.rows.copy_(tensors["sums"])
    sums.count, sums.trace = header["count"], header["trace"]
    return Fingerprint(**header["data"])
