"""Sketched Lanczos uncertainty: the score of the paper, and what else its subspace tells."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from slu.curvature import Batch, Curvature, Forward, Network, SampleGradients, batches, is_one_batch
from slu.curvature.batches import map_tensors, tensors
from slu.curvature.products import CURVATURES
from slu.errors import ModelError, SettingError, unknown
from slu.krylov import Step, low_memory, preconditioned, start_vector
from slu.likelihoods import Likelihood, resolve
from slu.methods.readings import Reading, check_outputs, find_reading, measure, rows_to_measure
from slu.parameters import Choice, select
from slu.sketches import DEFAULT_SKETCH, Sketch, SketchSpec, build, checked
from slu.subspace import ESTIMATORS, Diagnostics, Energies, SketchedSubspace, sketched_subspace

_USUAL_SKETCH_SIZE = 1000


class SLU:
    """How much could the network's answer change without disturbing what it learned?

    `fit` finds the directions of parameter space in which the data pin the network down: the
    leading eigenvectors of its curvature G, by k steps of Lanczos whose vectors are sketched to
    s numbers each. A query measures how much of an input's gradient lies outside of them.

    Args:
        model: Any trained module with outputs (b,) or (b, t). It is never changed.
        likelihood: "classification", "regression", "multilabel", or an object of one's own
            with the four methods of `slu.likelihoods.Likelihood`.
        rank: k, the Lanczos steps: each is one pass over the data.
        sketch_size: s; by default 1000, or exact (no sketch) where there are fewer parameters.
            The score's error falls with 1/√(s - k), so s should be several times k.
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
        rank: int = 50,
        sketch_size: int | None = None,
        params: Choice = None,
        sketch: str | SketchSpec | None = None,
        estimator: str = "ratio",
        precondition: int = 0,
        keep: float | None = None,
        curvature: str = "ggn",
        forward: Forward | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ModelError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
        rank, precondition = _whole("the rank", rank), _whole("precondition", precondition)
        sketch_size = None if sketch_size is None else _whole("sketch_size", sketch_size)
        self.likelihood = resolve(likelihood)
        self.network = Network(model, select(model, params), forward)
        self.sketch = _sketch_spec(sketch, sketch_size, self.network.selection.count, seed)
        _check_rank(rank, self.sketch)
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
        self.estimator = estimator
        self.precondition = precondition
        self.keep = keep
        self.curvature = curvature
        self.seed = seed

    @torch.inference_mode(False)
    def fit(self, loader: Any) -> SluScore:
        """Find the subspace; the loader is read `rank` times.

        Args:
            loader: Anything that yields `(inputs, targets)` or inputs, again and again; or one
                batch. Targets are used by the curvatures "hessian" and "empirical-fisher" only.

        Raises:
            DataError: Empty, not finite, or of a shape the likelihood cannot take.
            ChangedDataError: Two passes saw different data.
            SettingError: The rank exceeds what the data allow, n·t.
        """
        begun = time.perf_counter()
        selection = self.network.selection
        self.network.check_weights()
        operator = Curvature(self.network, self.likelihood, loader, kind=self.curvature, seed=self.seed)
        sketch = build(self.sketch, device=selection.device, dtype=selection.dtype)
        start = start_vector(operator, self.seed)
        if self.precondition:
            steps = preconditioned(operator, start, self.rank, self.precondition)
        else:
            steps = low_memory(operator, start, self.rank)
        del start  # Lanczos lets go of it after two steps; so must we
        subspace = sketched_subspace(self._allowed(steps, operator), self.rank, sketch, keep=self.keep)
        diagnostics = dataclasses.replace(
            subspace.diagnostics,
            points=operator.points,
            passes=operator.passes,
            seconds=time.perf_counter() - begun,
        )
        return SluScore(self, sketch, dataclasses.replace(subspace, diagnostics=diagnostics))

    def _allowed(self, steps: Iterator[Step], operator: Curvature) -> Iterator[Step]:
        """The same steps, stopped after the first pass if the data cannot carry the rank."""
        for step in steps:
            if self.rank > operator.rank_bound:
                raise SettingError(
                    f"rank {self.rank} is above what the data allow: {operator.points} points of {operator.outputs} "
                    f"outputs give a curvature ({self.curvature}) of rank {operator.rank_bound} at most. "
                    "Lower the rank or fit on more points"
                )
            yield step


class SluScore:
    """A fitted score: call it on inputs; larger means less sure. Made by `SLU.fit`.

    It belongs to the weights it was fitted on and calls the model it was given: train that model
    further and the scores mean nothing; fit anew.

    Attributes:
        method: The settings it was fitted with.
        subspace: The basis in sketch space.
    """

    def __init__(self, method: SLU, sketch: Sketch, subspace: SketchedSubspace) -> None:
        self.method = method
        self.subspace = subspace
        self._sketch = sketch
        self._gradients = SampleGradients(method.network)

    @property
    def diagnostics(self) -> Diagnostics:
        """Effective rank, ghosts, orthogonality, Ritz values, residuals, passes, seconds."""
        return self.subspace.diagnostics

    def __call__(self, data: Any, *, reading: str = "variance", per_output: bool = False) -> Tensor:
        """Score one batch, or every batch of a loader in its order.

        Args:
            data: Inputs (a tensor or dict), an (inputs, targets) pair, or a loader of them.
            reading: "variance" (the paper's score), "relative" (that over ‖J‖²: the share the
                data do not pin down, from 0 to 1 up to the sketch's noise), "fisher" (of the
                predicted distribution instead of the outputs) or "fisher-relative".
            per_output: One score for each row (output) instead of their trace.

        Returns:
            (b,), or (b, t) per output, on the device the inputs came on. With the ratio
            estimator the trace is formed from summed energies, so it is not exactly the sum of
            the scores per output.

        Cost: t gradients and t sketches an input.
        """
        found = find_reading(reading)
        network = self.method.network
        scores: list[Tensor] = []
        with network.evaluating():
            for batch in batches(data, network.selection.device):
                scores.append(self._score(batch, found, per_output))
        device = _device(data) if is_one_batch(data) else torch.device("cpu")
        return torch.cat(scores).to(device)

    def _score(self, batch: Batch, reading: Reading, per_output: bool) -> Tensor:
        network, likelihood = self.method.network, self.method.likelihood
        # Inputs that require gradients would hang a graph on every score.
        inputs = map_tensors(Tensor.detach, batch.inputs)
        with torch.no_grad():
            outputs = check_outputs(network.outputs(inputs), batch.index)
            network.check_pointwise(inputs, outputs)
            vectors, scale = rows_to_measure(likelihood, outputs, reading)
        energies = measure(network, self._gradients, self._sketch, self.subspace, inputs, vectors)
        energies = energies if per_output else energies.sum()
        value = ESTIMATORS[self.method.estimator](energies, self.subspace.correction)
        if reading.relative:
            return _share(value, energies)
        scale = scale if per_output else scale[:, 0]
        return value * scale.to(value.dtype).square()


def _share(value: Tensor, energies: Energies) -> Tensor:
    # Where nothing can change at all, no share of it is open.
    return torch.where(energies.exact > 0, value / energies.exact, torch.zeros_like(value))


def _device(data: Any) -> torch.device:
    found = tensors(data)
    return found[0].device if found else torch.device("cpu")


def _sketch_spec(sketch: str | SketchSpec | None, size: int | None, parameters: int, seed: int) -> SketchSpec:
    if isinstance(sketch, SketchSpec):
        if sketch.parameters != parameters or size not in (None, sketch.size):
            raise SettingError(
                f"the sketch's spec is for {sketch.parameters} parameters and size {sketch.size}; the selection has "
                f"{parameters} and sketch_size is {size}. Leave sketch_size out and take parameters={parameters}"
            )
        return checked(sketch)
    small = parameters <= _USUAL_SKETCH_SIZE
    kind = sketch or ("identity" if size is None and small else DEFAULT_SKETCH)
    if size is None:
        size = parameters if small or kind == "identity" else _USUAL_SKETCH_SIZE
    return checked(SketchSpec(kind, parameters, size, seed))


def _check_rank(rank: int, sketch: SketchSpec) -> None:
    if rank < 1:
        raise SettingError(f"the rank must be at least 1, got {rank}")
    if rank > sketch.parameters:
        raise SettingError(f"rank {rank} is above the number of selected parameters, {sketch.parameters}")
    if rank >= sketch.size and sketch.kind != "identity":
        raise SettingError(
            f"rank {rank} leaves nothing of a sketch of size {sketch.size}; take a sketch_size of at least "
            f"{2 * rank}, or a smaller rank"
        )


def _whole(name: str, value: Any) -> int:
    try:
        return index(value)
    except TypeError:
        raise SettingError(f"{name} must be a whole number, got {value!r}") from None
