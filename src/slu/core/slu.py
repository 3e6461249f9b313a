"""Sketched Lanczos uncertainty: the score of the paper, and what else its subspace tells."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slu.artifacts import artifact as artefact
from slu.budgets import Budget, Cost, size_for
from slu.budgets.memory import explain_out_of_memory, numbers_within
from slu.checks import whole
from slu.core import calibrating
from slu.core.checkpoint import Checkpoint, CheckpointedRun
from slu.core.defaults import chosen_ridge, chosen_scale
from slu.core.scaling import USUAL_DAMPING, Scaling
from slu.core.score import SluScore
from slu.core.settings import subject
from slu.core.shape import Asked, check_memory, settle
from slu.core.solvers import chosen_solver
from slu.core.solvers.stream import StreamSolver
from slu.core.solvers.task import Task
from slu.curvature import CURVATURES
from slu.data import held_out_count
from slu.errors import ChangedDataError, DataError, MismatchError, SettingError, unknown
from slu.gradients import Forward
from slu.likelihoods import Likelihood, describe
from slu.parameters import Choice, difference, fingerprint
from slu.sketches import Sketch, SketchSpec, build
from slu.subspace import ESTIMATORS, Diagnostics, SketchedSubspace


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
        solver: "stream" (one pass over the data, one gradient a point; such a fit can go on with
            `partial_fit` and be merged) or "lanczos" (the paper's, k passes). Left out it is the
            stream, and Lanczos where a setting is given that only it has; docs/solvers.md says why.
        estimator: "ratio" (corrected, the default), "residual", or the paper's "difference".
        ridge: How far directions that the data pin down weakly stay open. 0 projects every direction found out,
            as the paper does; otherwise direction j counts by α / (λ_j + α), with α this share of the
            eigenvalues' sum, which is the posterior variance of a Laplace approximation with the prior
            precision α, and depends less on the rank. docs/readings.md shows what it does. "auto" is
            0.01, and 0 beside keep=, which knows no eigenvalues, and for the Hessian, whose may be negative.
        scale: "diagonal" for coordinates in which every parameter counts alike: gradients are divided
            by the root of the curvature's diagonal, found in one more pass and kept (p numbers). None
            for gradients as they are, as in the paper. Or (p,) factors of one's own, such as another
            score's `scale`. "auto" is "diagonal", and None for the Hessian, whose diagonal has no root.
        curvature: "ggn", "fisher", "empirical-fisher" or "hessian" (Lanczos only).
        precondition: For Lanczos, k₀ of the k steps that are kept in full (k₀ p numbers while
            fitting) to hold off ghosts.
        keep: For Lanczos, None for a rank-revealing basis; 0.9 for what the paper's authors run,
            which also keeps noise directions where steps were lost to ghosts.
        labels_per_point: For the stream, how many random mixtures of the labels are drawn a point;
            "all" for the exact GGN, t gradients a point.
        oversampling: For the stream, how many more directions are followed than kept; as many as
            the rank by default.
        damping: For a scale, what is added to the diagonal, as a share of the median of its positive
            entries: free of the loss's unit and of the number of points.
        prior_precision: For a scale, what is added to the diagonal as a number of one's own, in place
            of damping. The diagonal is a sum over the data, never a mean.
        scale_points: For a scale, how many points of the data its pass reads; all by default.
        memory: Of gradients in flight, "4MB" or a number of floats: 256 MB by default where they must be whole,
            pieces of 8 MB where layers have formulas. One row of the largest piece, or one whole, is always held.
        forward: How to call the model on the inputs of a batch, forward(model, inputs).
        seed: Of start vector, sketch and mixtures of labels; one seed, the same numbers anywhere.

    Cost: Lanczos takes k passes over the data, each about 5/3 of a training epoch's gradients, and
    4 p + s (k + 1) numbers; the stream one pass, s (k + oversampling) numbers and the gradients in
    flight; both the sketch's state and one batch's activations. A scale takes one pass more, with t
    gradients a point. Kept are s·r numbers, r ≤ k the effective rank (s (k + 1) where more than half of
    the steps survive), p for a scale, and five for each calibration point.

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
        solver: str | None = None,
        estimator: str = "ratio",
        ridge: float | str = "auto",
        scale: str | Tensor | None = "auto",
        curvature: str = "ggn",
        precondition: int = 0,
        keep: float | None = None,
        labels_per_point: int | str = 1,
        oversampling: int | None = None,
        damping: float = USUAL_DAMPING,
        prior_precision: float | None = None,
        scale_points: int | None = None,
        memory: Budget | None = None,
        forward: Forward | None = None,
        seed: int = 0,
    ) -> None:
        rank = None if rank is None else whole("the rank", rank)
        sketch_size = None if sketch_size is None else whole("sketch_size", sketch_size)
        self.network, self.likelihood = subject(model, likelihood, params, forward)
        selection = self.network.selection
        scale = chosen_scale(scale, curvature)
        self.scaling = Scaling.chosen(scale, damping, scale_points, selection.count, curvature, prior=prior_precision)
        asked = Asked(rank, sketch_size, budget, sketch=sketch, reserved=self.scaling.kept(selection.count))
        settled = settle(asked, selection.count, selection.dtype.itemsize, seed)
        self.sketch, self.rank = settled.sketch, settled.rank
        if estimator not in ESTIMATORS:
            raise unknown("estimator", estimator, ESTIMATORS)
        if curvature not in CURVATURES:
            raise unknown("curvature", curvature, CURVATURES)
        self.room = numbers_within(memory, selection)
        self.solver = chosen_solver(
            solver,
            settled,
            curvature,
            precondition=precondition,
            keep=keep,
            labels_per_point=labels_per_point,
            oversampling=oversampling,
        )
        self.estimator = estimator
        self.ridge = chosen_ridge(ridge, keep, curvature)
        self.curvature = curvature
        self.seed = whole("the seed", seed)
        check_memory(settled, self.cost(), selection, self.solver.growth)

    def cost(self, outputs: int | None = None, batch: int | Any = 1) -> Cost:
        """Bytes kept, and at the peaks of fitting and querying, beyond the model and activations.

        Args:
            outputs: t; by default as many as the model's last layer seems to have.
            batch: Inputs of a batch, of the data while fitting and of a query; or such a batch itself, by one
                forward pass of which the gradients in its activations are counted too.

        Cost: arithmetic; nothing is built. Up to half of the kept bytes come on top at the end of
        a Lanczos fit that lost most of its steps to ghosts, and a checkpoint's copy while it is written. A
        calibration ends a fit with queries, in batches of at most 64, so that its peak is the larger of the
        two; it keeps at most 40 kB, and the inputs of its points.
        """
        size = size_for(self.network, outputs, batch, self.room)
        return self.scaling.added_to(self.solver.cost(self.sketch, size), size)

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
        selection = self.network.selection
        self.network.check_weights()
        parts = calibrating.split(self.network, loader, calibration, self.seed)
        run = CheckpointedRun(checkpoint, {} if checkpoint is None else self._identity(parts.source))
        sketch = build(self.sketch, device=selection.device, dtype=selection.dtype)
        finished = run.finished()
        if finished is not None:
            subspace, scale, reference = finished
            subspace, scale = subspace.to(selection.device), _moved(scale, selection.device)
            score = SluScore(self, sketch, subspace, scale=scale, reference=reference)
            if reference.stopped:
                score.reference = calibrating.resumed(score, parts, loader, progress)
                run.finish(subspace, scale, score.reference)
            return score
        parts = parts.prepared()
        with explain_out_of_memory("fitting SLU", self.cost, selection.device):
            task = self.task(parts.data, sketch, None, run, progress)
            scale, seen = _moved(run.scale(), selection.device), None
            if scale is None:
                scale, seen = self.scaling.factors(task)
            run.keep_scale(scale)
            subspace = self._solved(dataclasses.replace(task, scale=scale), seen)
        score = SluScore(self, sketch, subspace, scale=scale)
        if parts.source is not None:  # whoever is stopped while it calibrates has only that to do again
            run.finish(subspace, scale, calibrating.Reference.while_calibrating(parts.held_out))
        score.reference = parts.reference(score.read_all, progress)
        run.finish(subspace, scale, score.reference)
        return score

    def _solved(self, task: Task, seen: int | None) -> SketchedSubspace:
        """The subspace; `seen` points were read for the scale. They may be others by augmentation, but not fewer."""
        advice = "Give a loader that can be read again, or scale=None (or factors of your own) for a single pass"
        try:
            subspace = self.solver.solve(task)
        except DataError as reason:
            if seen is None:
                raise
            raise type(reason)(f"{reason}. The pass before it, for the scale, read {seen} points. {advice}") from reason
        facts = subspace.diagnostics
        found = facts.points + held_out_count(task.loader)  # which of them are held out may change with their content
        if seen is not None and found != seen:
            raise ChangedDataError(f"the scale was found from {seen} points, the subspace from {found}. {advice}")
        facts = dataclasses.replace(facts, passes=facts.passes + self.scaling.passes)
        return dataclasses.replace(subspace, diagnostics=facts)

    def task(
        self, loader: Any, sketch: Sketch, scale: Tensor | None, run: CheckpointedRun, progress: bool | None
    ) -> Task:
        """What a solver is given."""
        whose = (self.network, self.likelihood, loader, sketch, scale)
        return Task(*whose, self.curvature, self.seed, self.room, run, progress)

    def settings(self) -> dict[str, Any]:
        """All that decides the numbers but the model, its selection and likelihood: as the constructor takes them."""
        return {
            "rank": self.rank,
            "seed": self.seed,
            "sketch": dataclasses.asdict(self.sketch),
            "estimator": self.estimator,
            "ridge": self.ridge,
            "curvature": self.curvature,
            **self.solver.settings(),
            **self.scaling.settings(),
        }

    def _identity(self, calibrated_on: str | None) -> dict[str, Any]:
        """What a running fit belongs to; without calibration estimator and ridge may be chosen anew."""
        settings = self.settings() | self.scaling.identity()
        estimator, ridge = settings.pop("estimator"), settings.pop("ridge")
        return {
            "method": type(self).__name__,
            "params": list(self.network.selection.names),
            **settings,
            "calibration": None if calibrated_on is None else f"{calibrated_on}, read by {estimator}, ridge {ridge}",
            "likelihood": describe(self.likelihood),
            "own_forward": self.network.has_own_forward,
            "weights": fingerprint(self.network.model),
        }

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
        loaded = artefact.load(path, cls.__name__, model, likelihood=likelihood, forward=forward)
        settings, tensors = loaded.settings, loaded.tensors
        with artefact.sensible(path):
            diagnostics = Diagnostics.from_plain(settings.pop("diagnostics"))
            correction = float(settings.pop("correction"))
            reference = calibrating.Reference.restored(settings.pop("calibration", None), tensors)
            settings["sketch"] = SketchSpec(**settings["sketch"])
            settings.setdefault("ridge", 0.0)  # of files before there was one
            if settings["scale"] == "own":
                settings["scale"] = tensors["scale"]
            method = cls(model, loaded.likelihood, forward=forward, **settings)
            artefact.check_size(path, method.sketch, diagnostics.effective_rank, tensors)
            selection = method.network.selection
            scale = method.scaling.loaded(tensors.get("scale"), selection)
            sketch = build(method.sketch, device=selection.device, dtype=selection.dtype)
        artefact.check_sketch(path, sketch, tensors["probe"])
        basis = tensors["basis"].to(selection.device, selection.dtype)
        subspace = SketchedSubspace(basis, correction, diagnostics)
        return SluScore(method, sketch, subspace, scale=scale, weights=loaded.weights, reference=reference)

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

        Cost: s (k + oversampling) numbers, and t gradients for each calibration point; no data are read.
        """
        given = _listed(scores)
        first = given[0]
        solver = first.method.solver
        if not isinstance(solver, StreamSolver):
            raise SettingError("only scores fitted with solver='stream' can be merged; fit the shards with it")
        for place, score in enumerate(given[1:], 1):
            _check_mergeable(first, score, place)
        merged = solver.merged([score.subspace for score in given], first.sketch, first.method.seed)
        score = SluScore(first.method, first.sketch, merged, scale=first.scale, weights=first.weights)
        score.reference = calibrating.merged([each.reference for each in given], score.read_all)
        return score


def _listed(scores: Any) -> list[SluScore]:
    """What was given to `merge`, if it is fitted scores of SLU."""
    if not isinstance(scores, Iterable):
        raise SettingError(f"merge takes several fitted scores, a list of them; got a {type(scores).__name__}")
    given = list(scores)
    if not given:
        raise SettingError("there is nothing to merge; give a list of fitted scores")
    for place, score in enumerate(given):
        if not isinstance(score, SluScore):
            raise SettingError(f"merge takes fitted scores of SLU; at place {place} came a {type(score).__name__}")
    return given


def _check_mergeable(first: SluScore, other: SluScore, place: int) -> None:
    ours, theirs = first.method.settings(), other.method.settings()
    for key in [name for name in ours if name not in first.method.scaling.settings()]:
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


def _moved(scale: Tensor | None, device: torch.device) -> Tensor | None:
    return None if scale is None else scale.to(device)
