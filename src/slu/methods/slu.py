"""Sketched Lanczos uncertainty: the score of the paper, and what else its subspace tells."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slu.budgets import Budget, Choices, Cost
from slu.curvature import CURVATURES, Curvature, Forward, Pieces, SampleGradients, squared_lengths
from slu.errors import SettingError, unknown
from slu.krylov import State, Step, low_memory, preconditioned, resumed, start_vector
from slu.likelihoods import Likelihood, describe
from slu.methods import artefact
from slu.methods.checkpoint import Checkpoint, CheckpointedRun
from slu.methods.memory import explained
from slu.methods.readings import READINGS
from slu.methods.scoring import GradientReader
from slu.methods.settings import subject, whole
from slu.methods.shape import Asked, check_memory, settle, size_of, slu_cost
from slu.parameters import Choice, fingerprint, likely_outputs
from slu.progress import Bar
from slu.sketches import Sketch, SketchSpec, build
from slu.subspace import ESTIMATORS, Diagnostics, Energies, SketchedSubspace, SketchedVectors


class SLU:
    """How much could the network's answer change without disturbing what it learned?

    `fit` finds the directions of parameter space in which the data pin the network down: the
    leading eigenvectors of its curvature G, by k steps of Lanczos whose vectors are sketched to
    s numbers each. A query measures how much of an input's gradient lies outside of them.

    Args:
        model: Any trained module with outputs (b,) or (b, t). It is never changed.
        likelihood: "classification", "regression", "multilabel", or an object of one's own
            with the four methods of `slu.likelihoods.Likelihood`.
        rank: k, the Lanczos steps: each is one pass over the data. Left out, the budget sets it.
        sketch_size: s; beside a rank alone by default 1000, or exact (no sketch) where there are
            fewer parameters. The score's error falls with 1/√(s - k), so s should be several times k.
        budget: Memory for what is kept, s·k numbers: "3p" (copies of the parameters), "2GB", or a
            whole number of floats. Where there is no rank either: "3p", at least 50,000 floats. It sets what rank and
            sketch_size leave open, by the rule of `slu.budgets.shape_for`; what is given is obeyed
            or refused. A rank that the budget chose ends at the n·t steps that the data allow,
            which only the first pass can tell; one that is given and too high is refused.
        params: Which parameters count: None for the trainable ones, names, globs, a predicate.
        sketch: A kind of sketch by name, or a SketchSpec.
        estimator: "ratio" (corrected, the default), "residual", or the paper's "difference".
        precondition: k₀ of the k steps that are kept in full (k₀ p numbers while fitting) to
            hold off ghosts.
        keep: None for a rank-revealing basis; 0.9 for what the paper's authors run, which also
            keeps noise directions where steps were lost to ghosts.
        curvature: "ggn", "fisher", "empirical-fisher" or "hessian".
        forward: How to call the model on the inputs of a batch, forward(model, inputs).
        seed: Of start vector, sketch and sampled labels; one seed, the same numbers anywhere.

    Cost: k passes over the data, each about 5/3 of a training epoch's gradients. While fitting
    4 p + s (k + 1) numbers, the sketch's state and one batch's activations; kept are s·r
    numbers, r ≤ k the effective rank (s (k + 1) where more than half of the steps survive).

    Numerics: see `slu.krylov.low_memory` on ghosts and `slu.subspace.reveal` on rank.
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
        estimator: str = "ratio",
        precondition: int = 0,
        keep: float | None = None,
        curvature: str = "ggn",
        forward: Forward | None = None,
        seed: int = 0,
    ) -> None:
        precondition = whole("precondition", precondition)
        rank = None if rank is None else whole("the rank", rank)
        sketch_size = None if sketch_size is None else whole("sketch_size", sketch_size)
        self.network, self.likelihood = subject(model, likelihood, params, forward)
        selection = self.network.selection
        asked = Asked(rank, sketch_size, budget, sketch=sketch)
        settled = settle(asked, selection.count, selection.dtype.itemsize, seed)
        self.sketch, rank = settled.sketch, settled.rank
        if not 0 <= precondition <= rank:
            raise SettingError(f"precondition must lie between 0 and the rank {rank}, got {precondition}")
        if estimator not in ESTIMATORS:
            raise unknown("estimator", estimator, ESTIMATORS)
        if curvature not in CURVATURES:
            raise unknown("curvature", curvature, CURVATURES)
        if keep is not None and not 0 < keep <= 1:
            raise SettingError(f"keep must be a share in (0, 1], got {keep}")
        if keep is not None and precondition:
            raise SettingError(
                "keep weighs by Ritz values that a preconditioned run does not have; give one of the two"
            )
        self.rank = rank
        self.rank_from_budget = settled.from_budget
        self.estimator = estimator
        self.precondition = precondition
        self.keep = keep
        self.curvature = curvature
        self.seed = whole("the seed", seed)
        check_memory(settled, self.cost(), selection)

    def cost(self, outputs: int | None = None, batch: int = 1) -> Cost:
        """Bytes kept, and at the peaks of fitting and querying, beyond the model and activations.

        Args:
            outputs: t; by default as many as the model's last layer seems to have.
            batch: Inputs of a batch, of the data while fitting and of a query.

        Cost: arithmetic; nothing is built. Up to half of the kept bytes come on top at the end of
        a fit that lost most of its steps to ghosts, and a checkpoint's copy while it is written.
        """
        found = likely_outputs(self.network.model) if outputs is None else outputs
        choices = Choices(self.precondition, self.keep is not None, self.curvature == "hessian")
        return slu_cost(self.rank, self.sketch, size_of(self.network.selection, found, batch), choices)

    @torch.inference_mode(False)
    def fit(
        self, loader: Any, *, checkpoint: str | Path | Checkpoint | None = None, progress: bool | None = None
    ) -> SluScore:
        """Find the subspace; the loader is read `rank` times.

        Args:
            loader: Anything that yields `(inputs, targets)` or inputs, again and again; or one
                batch. Targets are used by the curvatures "hessian" and "empirical-fisher" only.
            checkpoint: A file to write the running fit to, once a minute (or as a `Checkpoint`
                says) and when it is interrupted. The same call goes on from it, and ends in the
                same numbers, bit for bit, for the same order of the data and number of threads.
            progress: Whether to show a bar; by default in a terminal only.

        Raises:
            DataError: Empty, not finite, or of a shape the likelihood cannot take.
            ChangedDataError: Two passes saw different data.
            SettingError: The rank exceeds what the data allow, n·t.
            StorageError: The checkpoint cannot be written, or belongs to another fit.
        """
        selection = self.network.selection
        self.network.check_weights()
        run = CheckpointedRun(checkpoint, self._identity() if checkpoint is not None else {})
        sketch = build(self.sketch, device=selection.device, dtype=selection.dtype)
        finished = run.finished()
        if finished is not None:
            return SluScore(self, sketch, finished.to(selection.device))
        operator = Curvature(self.network, self.likelihood, loader, kind=self.curvature, seed=self.seed)
        vectors = SketchedVectors(self.rank, sketch)
        steps = self._steps(operator, run.restore(vectors, operator))
        with explained("fitting SLU", self.cost(), selection.device):
            with run.watching(), Bar("fit", self.rank, progress, done=len(vectors.tridiagonal)) as bar:
                for step in self._allowed(steps, operator):
                    vectors.add(step)
                    run.note(vectors, step.state, operator)
                    bar.advance()
            subspace = vectors.subspace(self.keep)
        diagnostics = dataclasses.replace(
            subspace.diagnostics, points=operator.points, passes=operator.passes, seconds=run.seconds
        )
        subspace = dataclasses.replace(subspace, diagnostics=diagnostics)
        run.finish(subspace)
        return SluScore(self, sketch, subspace)

    def _steps(self, operator: Curvature, state: State | None) -> Iterator[Step]:
        if state is not None:
            return resumed(operator, state, min(self.rank, operator.rank_bound))
        start = start_vector(operator, self.seed)
        if self.precondition:
            return preconditioned(operator, start, self.rank, self.precondition)
        return low_memory(operator, start, self.rank)

    def _identity(self) -> dict[str, Any]:
        """What a running fit belongs to; the estimator may be chosen anew."""
        return {
            "method": type(self).__name__,
            "params": list(self.network.selection.names),
            "rank": self.rank,
            "seed": self.seed,
            "sketch": dataclasses.asdict(self.sketch),
            "precondition": self.precondition,
            "keep": self.keep,
            "curvature": self.curvature,
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
            settings["sketch"] = SketchSpec(**settings["sketch"])
            method = cls(model, loaded.likelihood, forward=forward, **settings)
            artefact.check_size(path, method.sketch, diagnostics.effective_rank, tensors)
            selection = method.network.selection
            sketch = build(method.sketch, device=selection.device, dtype=selection.dtype)
        artefact.check_sketch(path, sketch, tensors["probe"])
        basis = tensors["basis"].to(selection.device, selection.dtype)
        return SluScore(method, sketch, SketchedSubspace(basis, correction, diagnostics), loaded.weights)

    def _allowed(self, steps: Iterator[Step], operator: Curvature) -> Iterator[Step]:
        """The same steps; refused after the first if the data cannot carry a given rank, ended at n·t else."""
        for step in steps:
            if self.rank > operator.rank_bound and not self.rank_from_budget:
                raise SettingError(
                    f"rank {self.rank} is above what the data allow: {operator.points} points of {operator.outputs} "
                    f"outputs give a curvature ({self.curvature}) of rank {operator.rank_bound} at most. "
                    "Lower the rank or fit on more points"
                )
            yield step
            if step.state is not None and step.state.count >= operator.rank_bound:
                return


class SluScore:
    """A fitted score: call it on inputs; larger means less sure. Made by `SLU.fit`.

    It belongs to the weights it was fitted on and calls the model it was given: train that model
    further and the scores mean nothing; fit anew.

    Attributes:
        method: The settings it was fitted with.
        subspace: The basis in sketch space.
    """

    def __init__(
        self, method: SLU, sketch: Sketch, subspace: SketchedSubspace, weights: dict[str, str] | None = None
    ) -> None:
        self.method = method
        self.subspace = subspace
        # Now, not when it is saved: by then the network may have been trained further.
        self._weights = weights or fingerprint(method.network.model)
        self._sketch = sketch
        gradients = SampleGradients(method.network)
        self._read = GradientReader(method.network, method.likelihood, gradients, self._energies, self._estimate)

    @property
    def readings(self) -> tuple[str, ...]:
        """The names that `reading=` takes; the first is the default."""
        return tuple(READINGS)

    @property
    def diagnostics(self) -> Diagnostics:
        """Effective rank, ghosts, orthogonality, Ritz values, residuals, passes, seconds."""
        return self.subspace.diagnostics

    def save(self, path: str | Path) -> None:
        """Write the score to one file, atomically, tied to the exact weights it was fitted on.

        Cost: s·r numbers and a header; the sketch goes in as its few settings, not as numbers.
        """
        method, subspace = self.method, self.subspace
        settings = {
            "rank": method.rank,
            "sketch": dataclasses.asdict(method.sketch),
            "estimator": method.estimator,
            "precondition": method.precondition,
            "keep": method.keep,
            "curvature": method.curvature,
            "seed": method.seed,
            "correction": subspace.correction,
            "diagnostics": subspace.diagnostics.plain(),
        }
        tensors = {"basis": subspace.basis, "probe": artefact.probe(self._sketch)}
        artefact.save(
            path, type(method).__name__, method.network, method.likelihood, settings, tensors, weights=self._weights
        )

    def __call__(
        self, data: Any, *, reading: str = "variance", per_output: bool = False, progress: bool | None = None
    ) -> Tensor:
        """Score one batch, or every batch of a loader in its order.

        Args:
            data: Inputs (a tensor or dict), an (inputs, targets) pair, or a loader of them.
            reading: "variance" (the paper's score), "relative" (that over ‖J‖²: the share the
                data do not pin down, from 0 to 1 up to the sketch's noise), "fisher" (of the
                predicted distribution instead of the outputs) or "fisher-relative".
            per_output: One score for each row (output) instead of their trace.
            progress: Whether to show a bar for a loader; by default in a terminal only.

        Returns:
            (b,), or (b, t) per output, on the device the inputs came on. With the ratio
            estimator the trace is formed from summed energies, so it is not exactly the sum of
            the scores per output.

        Cost: t gradients and t sketches an input.
        """
        return self._read(data, reading=reading, per_output=per_output, progress=progress, cost=self.method.cost())

    def _energies(self, pieces: Pieces, shape: tuple[int, int]) -> Tensor:
        """(3, samples, vectors) energies of rows: each piece is squared and sketched as it comes, and dropped."""
        basis = self.subspace.basis
        sketched = basis.new_zeros(*shape, self._sketch.shape[0])
        squared = basis.new_zeros(shape)
        for start, values in pieces:
            squared += squared_lengths(values)
            self._sketch.accumulate(start, values, sketched)
            del values  # or it would stay while the next is put together
        found = self.subspace.energies(squared, sketched)
        return torch.stack([found.exact, found.captured, found.residual])

    def _estimate(self, energies: Tensor) -> Tensor:
        return ESTIMATORS[self.method.estimator](Energies(*energies), self.subspace.correction)
