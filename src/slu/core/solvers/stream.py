"""One pass over the data: a sum of sketched gradients, and its leading directions at the end."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slu.artifacts import stored
from slu.artifacts.checkpoint import CheckpointedRun, Snapshot
from slu.artifacts.records import stored_fingerprint
from slu.budgets import Cost, Size, Sketched, sketched_stream
from slu.budgets.memory import explain_out_of_memory
from slu.checks import whole
from slu.core.layer_sums import LayerSums
from slu.core.scaling import sketch_rows, unformed
from slu.core.settings import Settings, Task
from slu.core.state import FittedState
from slu.curvature import RootRows, warn_of_probabilities
from slu.data import Fingerprint, ReadAhead, Shard, batch_count, known_points
from slu.errors import SettingError
from slu.gradients import Rows
from slu.processes import ALONE, Processes
from slu.progress import Bar
from slu.sketches import Sketch
from slu.subspace import Nystrom, SketchedSubspace


@dataclass(frozen=True)
class Stream:
    """One gradient per point, sketched and added to a sum of fixed size.

    Of a point with the output factor L (H = L Lᵀ) and the Jacobian J it is g = Jᵀ L ε with random signs ε: a mixture
    of the columns of L, which for classes are the labels beside the predicted one. E Σ g gᵀ = G, so the leading
    eigenvectors of Σ (S g)(S g)ᵀ are those of the sketched curvature: no recurrence, no ghosts. `slu.subspace.Nystrom`
    finds them from products with k + oversampling fixed vectors. The curvature "fisher" has gradients at labels drawn
    from the model instead.

    Args:
        labels_per_point: How many mixtures (for the Fisher, labels) are drawn per point; "all" for the exact GGN by
            t rows per point.
        oversampling: How many more directions are followed than kept; as many as the rank by default.

    Cost: one pass; `labels_per_point` gradients per point. s (k + oversampling) numbers, the sketch's
    state, and the gradients in memory.

    Numerics: see `slu.subspace.Nystrom`.
    """

    labels_per_point: int | str = 1
    oversampling: int | None = None

    def __post_init__(self) -> None:
        if self.labels_per_point != "all":
            whole("labels_per_point (a number, or 'all')", self.labels_per_point, least=1)
        if self.oversampling is not None:
            whole("oversampling", self.oversampling, least=0)

    def for_fit(self, rank: int, curvature: str) -> Stream:
        """The solver with what was left open settled.

        Raises:
            SettingError: It cannot solve for this curvature.
        """
        if curvature == "hessian":
            raise SettingError("the Hessian is no sum of squares, as one pass needs it; use solver='lanczos'")
        if self.labels_per_point != 1 and curvature == "empirical-fisher":
            raise SettingError(
                "labels_per_point: curvature='empirical-fisher' has the data's labels, one gradient per point"
            )
        if self.labels_per_point == "all" and curvature == "fisher":
            raise SettingError("curvature='fisher' is of drawn labels; all of them make curvature='ggn'")
        return self if self.oversampling is not None else dataclasses.replace(self, oversampling=rank)

    def width(self, rank: int) -> int:
        """How many directions are followed."""
        return rank + (rank if self.oversampling is None else self.oversampling)

    def growth(self, rank: int) -> float:
        """Numbers that a fit holds more with every number that is kept, at least: the usual sum is twice as wide."""
        return 2.0 if self.width(rank) == 2 * rank else 1.0

    def rows_per_point(self, curvature: str, outputs: int) -> float:
        """Gradients per point."""
        if curvature == "empirical-fisher":
            return 1
        return outputs if self.labels_per_point == "all" else int(self.labels_per_point)

    def header(self) -> dict[str, Any]:
        """As plain data, for a file."""
        return {"kind": "stream", **dataclasses.asdict(self)}

    def cost(self, rank: int, sketch: Sketched, size: Size, curvature: str) -> Cost:
        """Bytes and passes."""
        del curvature
        rows = size.outputs if self.labels_per_point == "all" else int(self.labels_per_point)
        return sketched_stream(rank, self.width(rank), sketch, size, rows)

    def solve_more(
        self, settings: Settings, data: Any, sketch: Sketch, before: FittedState, progress: bool | None,
        processes: Processes = ALONE, part: Shard | None = None,
    ) -> FittedState:  # fmt: skip
        """The state of an earlier fit with these settings after more data, for which its scale stays as it was."""
        loader = ReadAhead(data, settings.network.reader)
        run = CheckpointedRun(None, {})
        task = Task(settings, loader, sketch, run, progress, processes, part, before.scale)
        with explain_out_of_memory("fitting SLU", settings.cost, settings.network.selection.device):
            return self.solve(task, before)

    def solve(self, task: Task, before: FittedState | None = None) -> FittedState:
        """The state of the data, and of what an earlier fit saw where its state is given."""
        fit, processes, earlier = task.settings, task.processes, [] if before is None else [before]
        begins = processes.rank == 0  # what was seen before counts once
        layers = LayerSums(fit.network, fit.layers.numbers, fit.seed)
        if before is not None:
            layers.begin_with(before.layers, counted=begins)
        rows_of_data = self._rows(task, layers)
        sums = self._sums(task.sketch, fit.rank, fit.seed, earlier if begins else [])
        snapshot = task.run.restore(in_order=True)
        with task.run.reading():
            done = None if snapshot is None else _restored(snapshot, sums, layers)
        waiting: list[Tensor] = []
        known = known_points(task.loader.data, fit.network.reader) if before is None else None
        batches_done = count(1)

        def take(rows: Rows) -> None:
            _, sketched = sketch_rows(rows, task.scale, task.sketch)
            waiting.append(sketched.flatten(0, 1))
            if sum(map(torch.numel, waiting)) > fit.gradient_memory:
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
            layers.add()
            if next(batches_done) == 1:
                _check_rank(task, rows_of_data, known)  # as soon as the outputs are known, not after the last batch
                if rows_of_data.probabilities:
                    warn_of_probabilities()
            task.run.note(_Snapshot(sums, layers, dataclasses.replace(rows_of_data.seen)))
            bar.advance()

        with task.run.watching(), Bar("fit", batch_count(task.loader), task.progress) as bar:
            rows_of_data.feed(take, batch_done, done=done, compare=task.run.compares)
        task.check_shards()
        points = sum(processes.gathered("points", rows_of_data.points))
        if before is None and rows_of_data.points:  # an earlier fit had as many gradients as its rank already
            _check_rank(task, rows_of_data, points)
        layers.pool(processes)
        processes.add_up([sums.rows])
        sums.trace = math.fsum(processes.gathered("traces", sums.trace))
        state = self._state(sums, task.sketch, fit.rank, points, task.run.seconds, earlier)
        return dataclasses.replace(state, scale=task.scale, layers=layers.statistics())

    def merged(self, states: Sequence[FittedState], sketch: Sketch, rank: int, seed: int) -> FittedState:
        """One state of what several fits saw, each known by its own leading directions."""
        seconds = sum(state.seconds for state in states)
        sums = self._sums(sketch, rank, seed, states)
        return dataclasses.replace(self._state(sums, sketch, rank, 0, seconds, states), scale=states[0].scale)

    def _rows(self, task: Task, layers: LayerSums) -> RootRows:
        fit = task.settings
        drawn = self.labels_per_point != "all" and fit.curvature != "empirical-fisher"
        draws = int(self.labels_per_point) if drawn else None
        data = (fit.network, fit.likelihood, task.loader)
        return RootRows(
            *data, kind=fit.curvature, seed=fit.seed, draws=draws, max_numbers=fit.gradient_memory,
            unformed=unformed(task.scale, task.sketch), watch=layers.watch,
        )  # fmt: skip

    def _sums(self, sketch: Sketch, rank: int, seed: int, earlier: Sequence[FittedState]) -> Nystrom:
        sums = Nystrom(sketch.shape[0], self.width(rank), seed, device=sketch.device, dtype=sketch.dtype)
        for state in earlier:
            values = state.subspace.eigenvalues
            assert values is not None and state.trace is not None  # of a single pass
            sums.add_eigenpairs(values, state.subspace.basis)
            # What that fit had cut off is gone from the sum, but not from the trace.
            sums.trace += state.trace - float(np.maximum(values, 0.0).sum())
        return sums

    def _state(  # the arguments are what the sum, the data and the earlier fits each contribute
        self, sums: Nystrom, sketch: Sketch, rank: int, points: int, seconds: float, earlier: Sequence[FittedState]
    ) -> FittedState:
        """Of a sum over some points, and over those of earlier fits; `passes` says how often one of them was read."""
        trace = sums.trace
        values, basis = sums.leading(rank)
        return FittedState(
            SketchedSubspace(basis, values, sketch.correction(len(basis))),
            points=points + sum(state.points for state in earlier),
            passes=max([1, *(state.passes for state in earlier)]),
            seconds=seconds,
            trace=trace,
        )


def _check_rank(task: Task, rows: RootRows, points: int | None) -> None:
    """Refuse a given rank that so many points do not allow; None where their number is not known."""
    rank = task.settings.rank
    if points is not None and task.settings.rank_given and rank > rows.rank_allowed(points):
        raise SettingError(
            f"rank {rank} is above what the data allow: {points} points give {rows.rank_allowed(points)} "
            "gradients. Lower the rank, fit on more points, or draw more labels: "
            "solver=Stream(labels_per_point=...)"
        )


@dataclass(frozen=True)
class _Snapshot:
    """The sums and what of the data is in them. Cost: s (k + oversampling) numbers and those of layers, not copied."""

    sums: Nystrom
    layers: LayerSums
    seen: Fingerprint

    def __call__(self) -> Snapshot:
        tensors, layers = self.layers.snapshot()
        header = {"data": dataclasses.asdict(self.seen), "count": self.sums.count, "trace": self.sums.trace}
        return {"sums": self.sums.rows, **tensors}, header | {"layers": layers}


def _restored(snapshot: Snapshot, sums: Nystrom, layers: LayerSums) -> Fingerprint:
    tensors, header = snapshot
    sums.rows.copy_(stored.tensor(tensors, "sums", sums.rows.shape, sums.rows.dtype))
    sums.count, sums.trace = stored.whole(header, "count"), stored.number(header, "trace", least=0.0)
    layers.restore(tensors, None if stored.field(header, "layers") is None else stored.table(header, "layers"))
    return stored_fingerprint(header)
