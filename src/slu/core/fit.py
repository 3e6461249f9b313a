"""SLU, the method: from settings and data to a fitted score.

The path of a fit: hold points out, find the scale, solve, calibrate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slu.artifacts import artifact
from slu.artifacts.checkpoint import Checkpoint, CheckpointedRun
from slu.budgets import Budget, Cost
from slu.budgets.memory import explain_out_of_memory
from slu.core.calibration import HELD_OUT, CalibrationState, Split, merged, recalibrated, split
from slu.core.resolve import resolve_settings
from slu.core.scaling import AUTO, DiagonalScale, stored_scale
from slu.core.score import SluScore
from slu.core.settings import Settings, Task
from slu.core.solvers import SOLVERS, Lanczos, Stream
from slu.core.state import FittedState, check_size, check_sketch
from slu.data import held_out_count
from slu.errors import ChangedDataError, DamagedFileError, DataError, MismatchError, SettingError
from slu.gradients import Forward, Network
from slu.likelihoods import Likelihood
from slu.parameters import Choice, difference
from slu.sketches import SKETCHES, SketchSpec


class SLU:
    """How much could the network's answer change without disturbing what it learned?

    `fit` finds the directions of parameter space in which the data pin the network down: the
    leading eigenvectors of its curvature G, seen through a sketch of s numbers each. A query
    measures how much of an input's gradient lies outside of them.

    By default every parameter counts alike (scale), directions that the data pin down weakly stay
    open (ridge), and the score is calibrated on points held out and read as "combined": docs/readings.md
    says why, and where it loses. The paper's score is `scale=None, ridge=0.0`, with `solver="lanczos"`,
    `fit(loader, calibration=False)` and `score(x, reading="variance")`.

    Args:
        model: Any trained module with outputs (b,) or (b, t). It is never changed.
        likelihood: "classification", "regression", "multilabel", or an object of one's own
            with the four methods of `slu.likelihoods.Likelihood`.
        rank: k, the directions asked for. Left out, the budget sets it.
        sketch_size: s; beside a rank alone by default 1000, or exact (no sketch) where there are
            fewer parameters. The score's error falls with 1/√(s - k), so s should be several times k.
        budget: Memory for what is kept, s·k numbers (and p for a scale): "3p" (copies of the
            parameters), "2GB", or a whole number of floats. Where there is no rank either: "3p", at
            least 50,000 floats. It sets what rank and sketch_size leave open, by the rule of
            `slu.budgets.shape_for`; what is given is obeyed or refused. A rank that the budget chose
            ends at what the data allow; one that is given and too high is refused.
        params: Which parameters count: None for the trainable ones, names, globs, a predicate.
        sketch: A kind of sketch by name, or a SketchSpec.
        solver: "stream" or `Stream(...)` (one pass over the data, one gradient per point; such a fit can go on with
            `partial_fit` and be merged), or "lanczos" or `Lanczos(...)` (the paper's, k passes; the default for the
            Hessian). docs/solvers.md says why.
        scale: "diagonal" or `DiagonalScale(...)` for coordinates in which every parameter counts alike: gradients are
            divided by the root of the curvature's diagonal, found in one more pass and kept (p numbers). None
            for gradients as they are, as in the paper. Or (p,) factors of one's own, such as another
            score's `scale`. "auto" is "diagonal", and None for the Hessian, whose diagonal has no root.
        ridge: How far directions that the data pin down weakly stay open. 0 projects every direction out,
            as the paper does; otherwise direction j counts by α / (λ_j + α), with α this share of the
            eigenvalues' sum, which is the posterior variance of a Laplace approximation with the prior
            precision α, and depends less on the rank. docs/readings.md shows what it does. "auto" is
            0.01, and 0 beside `Lanczos(keep=...)`, which knows no eigenvalues, and for the Hessian, whose may be
            negative.
        curvature: "ggn", "fisher", "empirical-fisher" or "hessian" (Lanczos only).
        estimator: "ratio" (corrected, the default), "residual", or the paper's "difference".
        memory: For gradients at a time, "4MB" or a number of floats: 256 MB by default where they must be whole,
            chunks of 8 MB where layers have formulas. One row of the largest chunk, or one whole, is always held.
        forward: How to call the model on the inputs of a batch, forward(model, inputs).
        seed: Of start vector, sketch and mixtures of labels; one seed, the same numbers anywhere.

    Cost: Lanczos takes k passes over the data, each about 5/3 of a training epoch's gradients, and
    4 p + s (k + 1) numbers; the stream one pass, s (k + oversampling) numbers and the gradients in
    memory; both the sketch's state and one batch's activations. A scale takes one pass more, with t
    gradients per point. Kept are s·r numbers, r ≤ k the effective rank (s (k + 1) where more than half of
    the steps survive), p for a scale, and six for each calibration point.

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
        scale: str | DiagonalScale | Tensor | None = AUTO,
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
        """Bytes kept, and at the peaks of fitting and querying, beyond the model and activations.

        Args:
            outputs: t; by default as many as the model's last layer seems to have.
            batch: Inputs per batch, of the data while fitting and of a query; or such a batch itself, by one
                forward pass of which the gradients in its activations are counted too.

        Cost: arithmetic; nothing is built. Up to half of the kept bytes come on top at the end of
        a Lanczos fit that lost most of its steps to ghosts, and a checkpoint's copy while it is written. A
        calibration ends a fit with queries, in batches of at most 64, so that its peak is the larger of the
        two; it keeps at most 48 kB, and the inputs of its points.
        """
        return self.settings.cost(outputs, batch)

    @torch.inference_mode(False)
    def fit(
        self,
        loader: Any,
        *,
        calibration: Any = None,
        checkpoint: str | Path | Checkpoint | None = None,
        progress: bool | None = None,
    ) -> SluScore:
        """Find the subspace; the loader is read once by the stream, `rank` times by Lanczos, and once more for a scale.

        Args:
            loader: Anything that yields `(inputs, targets)` or inputs, again and again; or one
                batch. Targets are used by the curvatures "hessian" and "empirical-fisher" only.
            calibration: None to hold points out of the fit, by which p-values, flags and the combined
                reading are found: a tenth of the data, at most 1,000 points, chosen by their content and the
                seed. Fewer than 200 points are all fitted, and the score says so when it is asked for one of
                these. Points of one's own in place of them, as a loader or a batch, of which at most 1,000
                are used: better where the network is far surer of the points it was trained on than of fresh
                ones, which then raise more false alarms. False for neither: all points are fitted.
            checkpoint: A file to write the running fit to, once a minute (or as a `Checkpoint`
                says) and when it is interrupted. The same call goes on from it, and ends in the
                same numbers, bit for bit, for the same order of the data and number of threads. The
                stream reads the batches that are done again, to see that they are the same; a scale
                that was found is not found anew.
            progress: Whether to show a bar; by default in a terminal only.

        Raises:
            DataError: Empty, not finite, or of a shape the likelihood cannot take.
            ChangedDataError: Two passes of Lanczos saw different data.
            SettingError: The rank exceeds what the data allow.
            StorageError: The checkpoint cannot be written, or belongs to another fit.

        Cost: as of the class, and t gradients for each calibration point: with ten outputs, about as much again
        for a stream over up to 10,000 points, and less beyond. Their inputs stay in the CPU's memory, also of
        the score.
        """
        return _fit(self.settings, loader, calibration=calibration, checkpoint=checkpoint, progress=progress)

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        *,
        likelihood: str | Likelihood | None = None,
        forward: Forward | None = None,
    ) -> SluScore:
        """A score that was saved, for the very network it was fitted on.

        Args:
            path: What `SluScore.save` wrote.
            model: The network, on any device, with the same weights and buffers.
            likelihood: Only where the score was fitted with one of the user's own.
            forward: Only where the score was fitted with one.

        Raises:
            StorageError: No such file, another method's, or a newer format.
            DamagedFileError: Cut, flipped or edited.
            MismatchError: Another network, changed weights, or something of the user's own missing.

        Cost: a read of the file and of the weights; the sketch is drawn anew from its seed.
        """
        loaded = artifact.load(path, cls.__name__, model, likelihood=likelihood, forward=forward)
        plain, tensors = loaded.settings, loaded.tensors
        with artifact.sensible(path):
            plain["sketch"] = SketchSpec(**plain["sketch"])
            solver = plain["solver"]
            plain["solver"] = SOLVERS[solver["kind"]](**{key: solver[key] for key in solver if key != "kind"})
            plain["scale"] = stored_scale(plain["scale"], tensors)
            settings = cls(model, loaded.likelihood, forward=forward, **plain).settings
            check_size(path, settings.sketch, tensors)
            if settings.scale is not None and "scale" not in tensors:
                raise DamagedFileError("a scale is in the header but not in the file; fit anew")
            selection = settings.network.selection
            state = FittedState.from_file(tensors, loaded.state).on(selection)
            sketch = SKETCHES[settings.sketch.kind](settings.sketch, selection.device, selection.dtype)
        check_sketch(path, sketch, tensors["probe"])
        return SluScore(settings, sketch, state, weights=loaded.weights)

    @staticmethod
    def merge(scores: Iterable[SluScore]) -> SluScore:
        """One score of several that were fitted apart, on shards of the data, with the same settings.

        Each is known by its leading directions, so the result is that of one fit on all data up to
        what these had cut off. Where there is a scale it must be one for all: fit one shard, and the others
        with `scale=first.scale`. The points that they held out are pooled, but for those that one of them
        would have fitted, and scored anew. Scores that were loaded have no points any more: then
        `SluScore.calibrate(all data, held_out=True)` is left to do.

        Raises:
            SettingError: No scores, something else, or fitted by Lanczos.
            MismatchError: They differ in settings, scale or weights; the message says how.

        Cost: s (k + oversampling) numbers, and t gradients per calibration point; no data are read.
        """
        return _merge(scores)


def _fit(
    settings: Settings,
    loader: Any,
    *,
    calibration: Any,
    checkpoint: str | Path | Checkpoint | None,
    progress: bool | None,
) -> SluScore:
    """The work of `SLU.fit`, with the same arguments."""
    selection = settings.network.selection
    settings.network.check_weights()
    parts = split(settings.network, loader, calibration, settings.seed)
    run = CheckpointedRun(checkpoint, {} if checkpoint is None else settings.identity(parts.source))
    sketch = SKETCHES[settings.sketch.kind](settings.sketch, selection.device, selection.dtype)
    stored = run.finished()
    if stored is not None:
        score = SluScore(settings, sketch, FittedState.from_file(*stored).on(selection))
        if score.state.calibration.stopped:
            _calibrate(score, _resumed(score, parts, loader, progress), run)
        return score
    parts = parts.prepared()
    with explain_out_of_memory("fitting SLU", settings.cost, selection.device):
        state = _solve(Task(settings, parts.data, sketch, run, progress))
    state = dataclasses.replace(state, calibration=CalibrationState.while_calibrating(parts.held_out))
    score = SluScore(settings, sketch, state)
    if parts.source is not None:  # a process that is stopped while it calibrates has only that to do again
        run.finish(state.to_file)
    _calibrate(score, parts.calibrated(score.read_all, progress), run)
    return score


def _solve(task: Task) -> FittedState:
    """The scale, where there is one, and the subspace. They may see other points by augmentation, but not fewer."""
    settings = task.settings
    if settings.scale is None:
        return settings.solver.solve(task)
    scale, seen = task.run.scale(), None
    if scale is None:
        scale, seen = settings.scale.find(task)
    task = dataclasses.replace(task, scale=scale.to(settings.network.selection.device))
    task.run.keep_scale(task.scale)
    advice = "Give a loader that can be read again, or scale=None (or factors of your own) for a single pass"
    try:
        state = settings.solver.solve(task)
    except DataError as reason:
        if seen is None:
            raise
        raise type(reason)(f"{reason}. The pass before it, for the scale, read {seen} points. {advice}") from reason
    points = state.points + held_out_count(task.loader)  # which of them are held out may change with their content
    if seen is not None and points != seen:
        raise ChangedDataError(f"the scale is of {seen} points, the subspace of {points}. {advice}")
    return dataclasses.replace(state, passes=state.passes + settings.scale.passes)


def _resumed(score: SluScore, parts: Split, loader: Any, progress: bool | None) -> CalibrationState:
    """The calibration of a fit that was stopped while it calibrated; one pass finds its points again."""
    settings, threshold = score.settings, score.state.calibration.held_out
    if parts.source == HELD_OUT and threshold:
        return recalibrated(
            score.read_all, settings.network, settings.seed, loader,
            threshold=threshold, held_out=True, progress=progress,
        )  # fmt: skip
    return parts.prepared().calibrated(score.read_all, progress)


def _calibrate(score: SluScore, calibration: CalibrationState, run: CheckpointedRun) -> None:
    score.state = dataclasses.replace(score.state, calibration=calibration)
    run.finish(score.state.to_file)


def _merge(scores: Iterable[SluScore]) -> SluScore:
    """The work of `SLU.merge`."""
    given = _checked(scores)
    first = given[0]
    settings, solver = first.settings, first.settings.solver
    if not isinstance(solver, Stream):
        raise SettingError("only scores fitted with solver='stream' can be merged; fit the shards with it")
    for place, score in enumerate(given[1:], 1):
        _check_mergeable(first, score, place)
    state = solver.merged([score.state for score in given], first.sketch, settings.rank, settings.seed)
    score = SluScore(settings, first.sketch, state, weights=first.weights)
    calibration = merged([each.state.calibration for each in given], score.read_all)
    score.state = dataclasses.replace(state, calibration=calibration)
    return score


def _checked(scores: Any) -> list[SluScore]:
    """What was given to `merge`, if it is fitted scores of SLU."""
    if not isinstance(scores, Iterable):
        raise SettingError(f"merge takes several fitted scores, a list of them; got a {type(scores).__name__}")
    given = list(scores)
    if not given:
        raise SettingError("there is nothing to merge; give a list of fitted scores")
    for place, score in enumerate(given):
        if not isinstance(score, SluScore):
            raise SettingError(
                f"merge takes fitted scores of SLU, what `fit` returns; at place {place} came a {type(score).__name__}"
            )
    return given


def _check_mergeable(first: SluScore, other: SluScore, place: int) -> None:
    ours, theirs = first.settings.header(), other.settings.header()
    for key in [name for name in ours if name != "scale"]:
        if ours[key] != theirs.get(key):
            raise MismatchError(
                f"score {place} was fitted with {key} {theirs.get(key)!r}, the first with {ours[key]!r}"
            )
    changed = difference(first.weights, other.weights)
    if changed:
        raise MismatchError(f"score {place} was fitted on another network than the first: {changed}")
    same = first.scale is other.scale or (
        first.scale is not None and other.scale is not None and torch.equal(first.scale, other.scale)
    )
    if not same:
        raise MismatchError(
            f"score {place} has another scale than the first, so their directions do not compare; fit one shard as it "
            "is and the others with scale=first.scale, or all with scale=None"
        )
