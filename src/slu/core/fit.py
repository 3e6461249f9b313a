"""SLU, the method: from settings and data to a fitted score.

The steps of a fit: hold points out, compute the scale, solve, calibrate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slu.artifacts import artifact
from slu.artifacts.checkpoint import Checkpoint, CheckpointedRun
from slu.artifacts.shared_run import SharedRun
from slu.budgets import Budget, Cost
from slu.budgets.memory import explain_out_of_memory
from slu.core.calibration_state import CalibrationState
from slu.core.merging import merged_score
from slu.core.resolve import resolve_settings
from slu.core.scales import AUTO, ScaleChoice, stored_scale
from slu.core.scaling import SCALINGS
from slu.core.score import SluScore
from slu.core.settings import Task
from slu.core.solvers import SOLVERS, Lanczos, Stream
from slu.core.split import Split, compared, resumed, shards, split
from slu.core.state import FittedState
from slu.core.witness import check_state, from_file, stored_sketch, to_file
from slu.data import ReadAhead, Shard, check_repeatable
from slu.errors import ChangedDataError, DataError, SettingError
from slu.gradients import Forward, Network
from slu.likelihoods import Likelihood
from slu.parameters import Choice, select
from slu.processes import Processes
from slu.sketches import SKETCHES, SketchSpec


class SLU:
    """Sketched Lanczos uncertainty: how much could the outputs change at little cost in training loss?

    `fit` finds the directions of parameter space that the data determine: the leading eigenvectors of
    the curvature G, each stored as a sketch of s numbers. A query measures how much of an input's
    gradients lies outside of their span, and how far the inputs of the layers are from those of the data.

    By default all parameters have a similar weight (scale), directions that the data determine weakly are
    projected out only in part (ridge), and the score is calibrated on held-out points with the reading
    "combined": docs/readings.md says why, and where it loses. The paper's score is `scale=None, ridge=0.0`, with
    `solver="lanczos"`, `fit(loader, calibration=False)` and `score(x, reading="variance")`.

    Args:
        model: Any trained module: outputs (b,) or (b, t), of tokens (b, T, C), of pixels (b, C, h, w), or an object,
            dict or tuple with them. It is never changed. Of a wrapped one (DistributedDataParallel, torch.compile,
            accelerate) the module inside is taken.
        likelihood: "classification", "regression", "multilabel", or any object
            with the four methods of `slu.likelihoods.Likelihood`.
        rank: k, the number of directions. By default the budget sets it.
        sketch_size: s; with a rank and no budget by default 1000, or exact (no sketch) where there are
            fewer parameters. The score's error falls with 1/√(s - k), so s should be several times k.
        budget: Memory for what is kept, s·k numbers and those of the scale and the layers: "3p" (copies of the
            parameters), "2GB", or a whole number of floats. The default without a rank is "3p", at least 50,000 floats,
            and at most 150,000 beside the scale and the layers. Layers take at most a quarter of it, and at most 75,000
            floats without one. It sets rank and sketch_size where they are not given, by the rule of
            `slu.budgets.shape_for`; given values are used or rejected. A rank from the budget is lowered
            to what the data allow; a given rank that is too high is rejected.
        params: The parameters to select: None for the trainable ones, modules, names, prefixes, globs, a predicate,
            "last" or "lora"; see docs/models.md.
        sketch: A kind of sketch by name, or a SketchSpec.
        solver: "stream" or `Stream(...)` (one pass over the data, one gradient per point; such a fit can be continued
            with `partial_fit` and merged), or "lanczos" or `Lanczos(...)` (the paper's, k passes; the default for the
            Hessian). docs/solvers.md compares them.
        scale: "factored" or `FactoredScale(...)` to divide the gradient of every matrix by the roots of a product of
            rows and columns in place of the curvature's diagonal, from the first 512 points, which should be like the
            rest (shuffle data that are sorted). "diagonal" or `DiagonalScale(...)` for the diagonal itself, computed in
            one more pass and kept (p numbers). None for unscaled gradients, as in the paper. Or the `scale` of another
            score, or a tensor (p,) by which gradients are multiplied. "auto" is "factored", and None for the Hessian.
        ridge: 0 projects every direction out, as in the paper; otherwise the fraction α / (λ_j + α) of direction j
            remains, with α = ridge times the sum of the eigenvalues. This is the posterior variance of a Laplace
            approximation with the prior precision α, and depends less on the rank; see docs/scale.md. "auto"
            is 0.01, and 0 with `Lanczos(keep=...)`, which has no eigenvalues, and for the Hessian, which may have
            negative ones.
        curvature: "ggn", "fisher", "empirical-fisher" or "hessian" (Lanczos only).
        estimator: "ratio" (corrected, the default), "residual", or the paper's "difference".
        memory: Limit for per-example gradients, "4MB" or a number of floats: by default 256 MB for whole gradients,
            and chunks of 8 MB for layers with a graph rule. At least one row, or one whole gradient, is held.
        forward: How to call the model on the inputs of a batch, forward(model, inputs).
        seed: Seed of start vector, sketch and mixtures of labels; the same numbers on every device.

    Cost: Lanczos takes k passes over the data, each about 5/3 of a training epoch's gradients, and
    4 p + s (k + 1) numbers; the stream one pass, s (k + oversampling) numbers and a chunk of
    gradients; both the sketch's state and one batch's activations. The default scale takes one gradient more for
    each of 512 points, whose inputs are held until they are fitted; "diagonal" one pass more, with t gradients per
    point. Kept are s·r numbers, r ≤ k the effective rank (s (k + 1) where more than half of the steps survive), one
    per row and column of every matrix for the scale (p for "diagonal"), after a stream at most 4,288 per layer for the
    mean and covariance of its inputs, and up to ten per calibration point.

    Numerics: see `slu.krylov.low_memory` on ghosts, `slu.subspace.reveal` on rank, and
    `slu.subspace.Nystrom` on the single pass.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        rank: int | None = None,
        sketch_size: int | None = None,
        budget: Budget | None = None,
        params: Choice = None,
        sketch: str | SketchSpec | None = None,
        solver: str | Stream | Lanczos | None = None,
        scale: ScaleChoice = AUTO,
        ridge: float | str = AUTO,
        curvature: str = "ggn",
        estimator: str = "ratio",
        memory: Budget | None = None,
        forward: Forward | None = None,
        seed: int = 0,
    ) -> None:
        self.settings = resolve_settings(
            model,
            likelihood,
            rank=rank,
            sketch_size=sketch_size,
            budget=budget,
            params=params,
            sketch=sketch,
            solver=solver,
            scale=scale,
            ridge=ridge,
            curvature=curvature,
            estimator=estimator,
            memory=memory,
            forward=forward,
            seed=seed,
        )

    @property
    def network(self) -> Network:
        """The network that is differentiated."""
        return self.settings.network

    @property
    def rank(self) -> int:
        """k, given or set by the budget."""
        return self.settings.rank

    def cost(self, outputs: int | None = None, batch: int | Any = 1) -> Cost:
        """Bytes kept, and at the peaks of fitting and a default query, excluding the model and activations.

        Args:
            outputs: t; by default as many as the model's last layer seems to have.
            batch: Inputs per batch, while fitting and in a query; or such a batch itself, or a loader, in which case
                one forward pass also determines the memory for gradients of its activations, and which gradients are
                left as factors. A number alone assumes one position per input for matrices, and formed gradients of
                kernels.

        Cost: arithmetic; nothing is built. Not included: up to half of the kept bytes at the end of a Lanczos fit
        that lost most of its steps to ghosts, the copy of a checkpoint while it is written, and the inputs of the
        first 512 points, which are held until they are fitted. The calibration
        at the end of a fit scores batches of at most 64, so the peak of a fit is at least that of such a query;
        it keeps at most 80 kB, and the inputs of its points.
        """
        return self.settings.cost(outputs, batch)

    @torch.inference_mode(False)
    def fit(
        self,
        loader: Any,
        *,
        calibration: Any = None,
        checkpoint: str | Path | Checkpoint | None = None,
        group: Any = None,
        progress: bool | None = None,
    ) -> SluScore:
        """Find the subspace; the loader is read once by the stream, `rank` times by Lanczos, once more for "diagonal".

        Args:
            loader: An iterable of `(inputs, targets)` or inputs; or one batch. Targets are used by the curvatures
                "hessian" and "empirical-fisher", and to see whether the network has memorized its data. What is read
                once may be a generator.
            calibration: The points for p-values, flags and the combined reading. None to hold out a tenth of the
                data, at least 19 points and at most 1,000, chosen by their content and the seed; never more than
                half, nor points that a given rank needs. A loader or a batch of other points, of which at most 1,000
                are used: better if the network is overfitted, because fresh points then raise more false alarms.
                False for no calibration: all points are fitted. See docs/calibration.md.
            checkpoint: A file to which the running fit is written, once per minute (or as set in a
                `Checkpoint`) and when it is interrupted. The same call resumes from it and gives the same
                numbers, bit for bit, for the same order of the data and number of threads. What was read before is
                read again (a generator must begin anew) and compared: by the stream batch by batch, of a finished fit
                the points and their content in any order; see `Checkpoint`. A scale that was computed is reused.
            group: The processes that fit together, each with a loader of its own part of the data, and all with the
                same result: a group of torch.distributed; None for the default one, where it is initialized; False for
                this process alone. See docs/processes.md.
            progress: Whether to show a bar; by default in a terminal only.

        Raises:
            DataError: Empty, not finite, of a shape the likelihood cannot take, or an iterator where several passes
                are needed.
            ChangedDataError: Two passes saw different data.
            SettingError: The rank exceeds what the data allow, or points are to be held out of data that a checkpoint
                does not compare.
            StorageError: The checkpoint cannot be written, or another fit is writing it.
            MismatchError: It belongs to another fit, or to other data.
            ProcessError: Another process of the group failed, was killed, or did not come.

        Warns:
            CalibrationWarning: There are fewer than 19 calibration points, so that nothing is flagged at 5 %; or the
                targets of held-out points show that the network may have memorized them.

        Cost: that of the class, and one gradient per calibration point. The score keeps the inputs of these points in
        CPU memory. While the data are read, 16 to 32 bytes per distinct point number its copies for the mixtures of
        labels, and as many for the hold-out.
        """
        processes = Processes(group)
        progress = progress if processes.rank == 0 else False
        with processes.together("a fit of SLU"):
            score = self._fit(loader, calibration, checkpoint, processes, progress)
            if processes.rank == 0:  # before the others return, whom a warning that is made an error ends as well
                score.state.calibration.warn(stacklevel=4)
        return score

    def _fit(
        self, loader: Any, calibration: Any, checkpoint: str | Path | Checkpoint | None, processes: Processes,
        progress: bool | None,
    ) -> SluScore:  # fmt: skip
        settings = self.settings
        settings.network.check_weights()
        if not isinstance(settings.solver, Stream) or (settings.scale is not None and settings.scale.passes):
            check_repeatable(
                loader, "solver='lanczos' and scale='diagonal' need several passes, the default settings one"
            )
        if isinstance(checkpoint, Checkpoint) and not checkpoint.check_data and calibration is None:
            raise SettingError(
                "check_data=False is for data that change with every reading, of which a resumed fit would hold out "
                "other points than it began with, and calibrate on fitted ones; give calibration=False, or a loader of "
                "calibration points"
            )
        data = given = None
        written = checkpoint is not None
        loader, calibration, part = shards(settings, loader, calibration, processes, checkpoint=written)
        if checkpoint is not None or (settings.scale is not None and settings.scale.passes):
            loader = data = compared(settings.network, loader, "the data")
        if checkpoint is not None and calibration is not None and calibration is not False:
            calibration = given = compared(settings.network, calibration, "the calibration points")
        parts = split(settings, loader, calibration, fitted_at_least=settings.least_points, processes=processes)
        identity = {} if checkpoint is None else settings.identity(parts.source)
        if checkpoint is None or data is None or processes.size == 1:
            run = CheckpointedRun(checkpoint, identity, data, given)
        else:
            run = SharedRun(checkpoint, identity, data, given, processes)
        with run.holding():
            return self._fitted(parts, part, run, progress)

    def _fitted(self, parts: Split, part: Shard | None, run: CheckpointedRun, progress: bool | None) -> SluScore:
        settings, selection = self.settings, self.network.selection
        sketch = SKETCHES[settings.sketch.kind](settings.sketch, selection.device, selection.dtype)
        stored = run.finished()
        if stored is not None:
            with run.reading():
                state = from_file(*stored, settings, sketch)
            score = SluScore(settings, sketch, state)
            with run.comparing():
                calibration = resumed(score.read_uncalibrated, state.calibration, parts, settings, run, progress)
            if calibration is not None:
                _calibrate(score, calibration, run)
            return score
        with run.comparing():
            parts = parts.prepared()
        with explain_out_of_memory("fitting SLU", settings.cost, selection.device):
            data = ReadAhead(parts.data, settings.network.reader, parts.processes)
            state = _solve(Task(settings, data, sketch, run, progress, parts.processes, part))
        with run.comparing():
            parts.read_if(run.unread, part)
        chosen = parts.chosen()
        state = dataclasses.replace(state, calibration=CalibrationState.while_calibrating(chosen.held_out))
        score = SluScore(settings, sketch, state)
        if parts.source is not None:  # a fit that is interrupted while it calibrates resumes there
            run.finish(partial(to_file, settings, sketch, state, estimated=False), calibrated=False)
        _calibrate(score, parts.calibrated(score.read_uncalibrated, chosen, progress), run)
        return score

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        *,
        likelihood: str | Likelihood | None = None,
        forward: Forward | None = None,
        check_weights: bool = True,
    ) -> SluScore:
        """A saved score, for the network it was fitted on.

        Args:
            path: What `SluScore.save` wrote.
            model: The network, on any device, wrapped or not, with the same weights and buffers.
            likelihood: Required if the score was fitted with a custom one.
            forward: Required if the score was fitted with one.
            check_weights: Whether the weights' values must be those of the fit, now and in every query.

        Raises:
            StorageError: No such file, another method's, or another format.
            DamagedFileError: Truncated, corrupted or edited.
            MismatchError: Another network, changed weights, or a custom likelihood or forward missing.

        Cost: a read of the file and of the weights; the sketch is regenerated from its seed.
        """
        own = {"likelihood": likelihood, "forward": forward, "check_weights": check_weights}
        loaded = artifact.load(path, cls.__name__, model, **own)
        plain, tensors = loaded.settings, loaded.tensors
        with artifact.sensible(path):
            plain["sketch"] = SketchSpec(**plain["sketch"])
            solver = plain["solver"]
            plain["solver"] = SOLVERS[solver["kind"]](**{key: solver[key] for key in solver if key != "kind"})
            selection = select(model, plain["params"])
            sketch = stored_sketch(path, plain["sketch"], tensors, selection)
            state = FittedState.from_file(tensors, loaded.state, selection, sketch)
            plain["scale"] = stored_scale(plain["scale"], state.scale)
            settings = cls(model, loaded.likelihood, forward=forward, **plain).settings
            kept = settings.layers.none() if state.layers is None else state.layers.folding
            settings = dataclasses.replace(settings, layers=kept)
            check_state(settings, state, loaded.state)
        settings.network.reader.format = loaded.reading
        return SluScore(settings, sketch, state, weights=loaded.weights, check_weights=check_weights)

    @staticmethod
    def merge(scores: Iterable[SluScore]) -> SluScore:
        """Merge scores that were fitted on shards of the data with the same settings.

        Each keeps only its leading directions, so the result is that of one fit on all data up to the
        truncated part. A scale must be the same for all: fit one shard, and the others with
        `scale=first.scale`. Their held-out points are pooled, except those that one of them would have
        fitted, and scored again. Loaded scores do not have these points: call
        `SluScore.calibrate(all data, held_out=True)` afterwards, which finds them.

        Raises:
            SettingError: No scores, not fitted scores of SLU, or fitted by Lanczos.
            MismatchError: They differ in settings, scale or weights; the message says how.

        Cost: s (k + oversampling) numbers, and one gradient per calibration point; no data are read.
        """
        score = merged_score(scores)
        score.state.calibration.warn()
        return score


def _solve(task: Task) -> FittedState:
    """The scale, if there is one, and the subspace."""
    settings = task.settings
    if settings.scale is None:
        return settings.solver.solve(task)
    stored = task.run.scale()
    if stored is None:
        scale = settings.scale.compute(task)
    else:
        kind = "factored" if settings.scale.factored else "dense"
        with task.run.reading():
            scale = SCALINGS[kind].stored(stored, settings.network.selection)
    task.run.keep_scale(scale.values)
    task = dataclasses.replace(task, scale=scale)
    try:
        state = settings.solver.solve(task)
    except DataError as reason:
        if stored is not None or not settings.scale.passes or isinstance(reason, ChangedDataError):
            raise
        raise type(reason)(
            f"{reason}. The pass before it, for the scale, had read them. Give a loader that can be read again, or "
            "scale='factored' for a single pass"
        ) from reason
    return dataclasses.replace(state, passes=state.passes + settings.scale.passes)


def _calibrate(score: SluScore, calibration: CalibrationState, run: CheckpointedRun) -> None:
    score.state = dataclasses.replace(score.state, calibration=calibration)
    run.finish(partial(to_file, score.settings, score.sketch, score.state, estimated=False), calibrated=True)
