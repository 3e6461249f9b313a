"""The linearized Laplace approximation with a low-rank curvature: a Gaussian posterior of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slu.artifacts import artifact as artefact
from slu.baselines.eigenbasis import Eigenbasis, Spectrum, find, remainder_meter, settle_search, stored
from slu.baselines.prior import check_prior, resolve_prior
from slu.budgets import Budget, Cost, size_for
from slu.budgets.costs import low_rank_laplace
from slu.core.readings import READINGS
from slu.core.scoring import GradientReader
from slu.core.settings import subject
from slu.gradients import Forward, PerExampleGradients
from slu.likelihoods import Likelihood
from slu.parameters import Choice, fingerprint


class LowRankLaplace:
    """How much do the network's outputs vary over weights that explain the data as well?

    `fit` finds leading eigenvectors U and eigenvalues Λ of the curvature G by Lanczos with every
    vector held. With α the precision of the weights' prior, the posterior's covariance is
    (U Λ Uᵀ + α I)⁻¹, and the score is the variance of the linearized outputs under it: the trace of
    J (U Λ Uᵀ + α I)⁻¹ Jᵀ = (‖J‖² - Σ λ/(λ + α) ‖J u‖²) / α. As α falls below every λ, α times
    it becomes the score of `LocalEnsemble`.

    Args:
        model: Any trained module with outputs (b,) or (b, t). It is never changed.
        likelihood: "classification", "regression", "multilabel", or an object of one's own
            with the four methods of `slu.likelihoods.Likelihood`.
        rank: Directions kept, each p numbers. Left out, the budget sets it; what the data allow,
            n·t, ends it then, and refuses a rank that is given and above.
        budget: Memory for what is kept: "3p" (copies of the parameters), "2GB", or a whole number
            of floats. Where there is no rank either: "3p".
        prior_precision: α, a number above 0 that stands beside a curvature *summed* over data: for
            weight decay w beside a mean loss it is n w. "paper" is what the paper's authors ran,
            α = 1/(2 n σ²) with σ = 0.1 and n the points of the fit. That rule belongs to a mean
            over data; beside their sum it is too small by n, λ/(λ + α) is nearly 1 for every
            direction kept, and the scores are nearly those of LocalEnsemble over α.
        steps: Lanczos steps, each one pass over the data; by default one more than the rank. Of the
            space that they span, the Ritz vectors with the largest Ritz values are kept; the step
            more gains a direction (see `LocalEnsemble`). What the authors run as "rank 3" is
            rank=2, steps=3: they keep int(0.9 · 3) of their vectors.
        curvature: "ggn", "fisher", "empirical-fisher" or "hessian". A negative eigenvalue of the
            Hessian is no precision; it is clipped to zero, which leaves its direction to the
            prior: such directions are left out, and positive ones take their places.
        params: Which parameters count: None for the trainable ones, names, globs, a predicate.
        forward: How to call the model on the inputs of a batch, forward(model, inputs).
        seed: Of start vector and sampled labels.

    Cost: as `LocalEnsemble`, and an eigenvalue a direction.

    Numerics: as `LocalEnsemble`. Weights λ/(λ + α) are found in float64. A direction that has not
    converged enters with its Ritz value, which is below the eigenvalue it belongs to.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        rank: int | None = None,
        budget: Budget | None = None,
        prior_precision: float | str = 1.0,
        steps: int | None = None,
        curvature: str = "ggn",
        params: Choice = None,
        forward: Forward | None = None,
        seed: int = 0,
    ) -> None:
        self.network, self.likelihood = subject(model, likelihood, params, forward)
        self.prior_precision = check_prior(prior_precision)
        self.search = settle_search(
            "LowRankLaplace",
            self.network.selection,
            rank=rank,
            budget=budget,
            steps=steps,
            curvature=curvature,
            seed=seed,
        )
        self.rank, self.steps = self.search.rank, self.search.steps
        self.curvature, self.seed = self.search.curvature, self.search.seed

    def cost(self, outputs: int | None = None, batch: int | Any = 1) -> Cost:
        """Bytes kept, and at the peaks of fitting and querying, beyond the model and activations.

        Args:
            outputs: t; by default as many as the model's last layer seems to have.
            batch: Inputs of a batch, of the data while fitting and of a query; or such a batch itself, by one
                forward pass of which the gradients in its activations are counted too.
        """
        size = size_for(self.network, outputs, batch)
        return low_rank_laplace(self.rank, size, self.steps, self.curvature == "hessian")

    @torch.inference_mode(False)
    def fit(self, loader: Any, *, progress: bool | None = None) -> LowRankLaplaceScore:
        """Find directions and eigenvalues; the loader is read `steps` times.

        Args:
            loader: Anything that yields `(inputs, targets)` or inputs, again and again; or one
                batch. Targets are used by the curvatures "hessian" and "empirical-fisher" only.
            progress: Whether to show a bar; by default in a terminal only.

        Raises:
            DataError: Empty, not finite, or of a shape the likelihood cannot take.
            ChangedDataError: Two passes saw different data.
            SettingError: The rank exceeds what the data allow, n·t.
            NumericalError: There is no curvature, or none that is positive.
        """
        found = find(self.search, self.network, self.likelihood, loader, cost=self.cost, progress=progress)
        return LowRankLaplaceScore(self, found)

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        *,
        likelihood: str | Likelihood | None = None,
        forward: Forward | None = None,
    ) -> LowRankLaplaceScore:
        """A score that was saved, for the very network it was fitted on.

        Args:
            path: What `LowRankLaplaceScore.save` wrote.
            model: The network, on any device, with the same weights and buffers.
            likelihood: Only where the score was fitted with one of the user's own.
            forward: Only where the score was fitted with one.

        Raises:
            StorageError: No such file, another method's, or a newer format.
            DamagedFileError: Cut, flipped or edited.
            MismatchError: Another network, changed weights, or something of the user's own missing.
        """
        loaded = artefact.load(path, cls.__name__, model, likelihood=likelihood, forward=forward)
        with artefact.sensible(path):
            spectrum = loaded.settings.pop("spectrum")
            method = cls(model, loaded.likelihood, forward=forward, **loaded.settings)
            found = stored(path, spectrum, loaded.tensors, method.search, method.network.selection)
        return LowRankLaplaceScore(method, found, loaded.weights)


class LowRankLaplaceScore:
    """A fitted score: call it on inputs; larger means less sure. Made by `LowRankLaplace.fit`.

    It belongs to the weights it was fitted on and calls the model it was given: train that model
    further and the scores mean nothing; fit anew.

    Attributes:
        method: The settings it was fitted with.
        prior_precision: α as a number, also where the setting is "paper".
        basis: (r, p) orthonormal rows, the directions in which the data add to the precision.
        eigenvalues: (r,) what they add (Ritz values), in float64.
        diagnostics: Steps, effective rank, Ritz values, residuals, passes, seconds.
    """

    def __init__(self, method: LowRankLaplace, found: Eigenbasis, weights: dict[str, str] | None = None) -> None:
        self.method = method
        self.basis: Tensor = found.vectors
        self.eigenvalues: np.ndarray = found.spectrum.ritz_values
        self.diagnostics: Spectrum = found.spectrum
        self.prior_precision = resolve_prior(method.prior_precision, found.spectrum.points)
        # Now, not when it is saved: by then the network may have been trained further.
        self._weights = weights or fingerprint(method.network.model)
        meter = remainder_meter(found.vectors, self.eigenvalues / (self.eigenvalues + self.prior_precision))
        gradients = PerExampleGradients(method.network)
        self._read = GradientReader(method.network, method.likelihood, gradients, meter, self._variance)

    @property
    def readings(self) -> tuple[str, ...]:
        """The names that `reading=` takes; the first is the default."""
        return tuple(READINGS)

    def __call__(
        self, data: Any, *, reading: str = "variance", per_output: bool = False, progress: bool | None = None
    ) -> Tensor:
        """Score one batch, or every batch of a loader in its order.

        Args:
            data: Inputs (a tensor or dict), an (inputs, targets) pair, or a loader of them.
            reading: "variance" (the default), "relative" (that over ‖J‖²: 1/α where the data say
                nothing, and towards 0 where they say everything), "fisher" (of the predicted
                distribution instead of the outputs) or "fisher-relative".
            per_output: One score for each row (output) instead of their trace; by the Fisher readings of a
                classifier, for each label beside the predicted one, which has 0.
            progress: Whether to show a bar for a loader; by default in a terminal only.

        Returns:
            (b,), or (b, t) per output, on the device the inputs came on; never negative.

        Cost: t gradients an input, and 2 r p operations on each.
        """
        found = self._read(data, reading=reading, per_output=per_output, progress=progress, cost=self.method.cost)
        return found.to(self.method.network.selection.dtype)

    def save(self, path: str | Path) -> None:
        """Write the score to one file, atomically, tied to the exact weights it was fitted on.

        Cost: r p numbers and a header.
        """
        method = self.method
        settings = {
            "rank": method.rank,
            "steps": method.steps,
            "curvature": method.curvature,
            "prior_precision": method.prior_precision,
            "seed": method.seed,
            "spectrum": self.diagnostics.plain(),
        }
        tensors = {"basis": self.basis}
        artefact.save(
            path, type(method).__name__, method.network, method.likelihood, settings, tensors, weights=self._weights
        )

    def _variance(self, measured: Tensor) -> Tensor:
        return measured[1] / self.prior_precision
