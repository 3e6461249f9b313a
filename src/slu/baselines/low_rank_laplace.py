"""The linearized Laplace approximation with a low-rank curvature: a Gaussian posterior of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from slu.artifacts.artifact import Loaded
from slu.baselines.base import (
    GRADIENT_READINGS,
    Baseline,
    FittedScore,
    check_prior,
    gradient_reader,
    resolve_prior,
)
from slu.baselines.eigenbasis import (
    Eigenbasis,
    Spectrum,
    eigenbasis_cost,
    find_eigenbasis,
    remainder_meter,
    settle_search,
    stored_eigenbasis,
)
from slu.budgets import Budget, Cost, Size
from slu.gradients import Forward
from slu.likelihoods import Likelihood
from slu.parameters import Choice


def low_rank_laplace_cost(rank: int, size: Size, steps: int | None = None, hessian: bool = False) -> Cost:
    """That of the eigenbasis, and k eigenvalues."""
    cost, values = eigenbasis_cost(rank, size, steps, hessian), rank * size.bytes_each
    return Cost(cost.artefact + values, cost.fitting + values, cost.querying + values, cost.passes)


@final
class LowRankLaplace(Baseline["LowRankLaplaceScore"]):
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

    Cost: as `LocalEnsemble`, and one eigenvalue per direction.

    Numerics: as `LocalEnsemble`. Weights λ/(λ + α) are computed in float64. A direction that has not
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
        super().__init__(model, likelihood, params, forward)
        self.prior_precision = check_prior(prior_precision)
        self.search = settle_search(
            "LowRankLaplace",
            self.network.selection,
            low_rank_laplace_cost,
            rank=rank,
            budget=budget,
            steps=steps,
            curvature=curvature,
            seed=seed,
        )
        self.rank, self.steps = self.search.rank, self.search.steps
        self.curvature, self.seed = self.search.curvature, self.search.seed

    def _cost(self, size: Size) -> Cost:
        return low_rank_laplace_cost(self.rank, size, self.steps, self.curvature == "hessian")

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
        return LowRankLaplaceScore(self, find_eigenbasis(self, self.search, loader, progress))

    @classmethod
    def _restored(
        cls, path: str | Path, loaded: Loaded, model: nn.Module, forward: Forward | None
    ) -> LowRankLaplaceScore:
        spectrum = loaded.settings.pop("spectrum")
        method = cls(model, loaded.likelihood, forward=forward, **loaded.settings)
        eigenbasis = stored_eigenbasis(path, loaded, spectrum, method.search, method.network.selection)
        return LowRankLaplaceScore(method, eigenbasis, loaded.weights)


@final
class LowRankLaplaceScore(FittedScore[LowRankLaplace]):
    """The score made by `LowRankLaplace.fit`; never negative.

    Readings: "variance" (the default), "relative" (that over ‖J‖²: 1/α where the data say nothing, and
    towards 0 where they say everything), "fisher" (of the predicted distribution instead of the outputs)
    and "fisher-relative".

    Attributes:
        prior_precision: α as a number, also where the setting is "paper".
        basis: (r, p) orthonormal rows, the directions in which the data add to the precision.
        eigenvalues: (r,) what they add (Ritz values), in float64.
        diagnostics: Steps, effective rank, Ritz values, residuals, passes, seconds.

    Cost: t gradients per input, and 2 r p operations on each.
    """

    def __init__(self, method: LowRankLaplace, eigenbasis: Eigenbasis, weights: dict[str, str] | None = None) -> None:
        self.basis: Tensor = eigenbasis.vectors
        self.eigenvalues: np.ndarray = eigenbasis.spectrum.ritz_values
        self.diagnostics: Spectrum = eigenbasis.spectrum
        self.prior_precision = resolve_prior(method.prior_precision, eigenbasis.spectrum.points)
        meter = remainder_meter(self.basis, self.eigenvalues / (self.eigenvalues + self.prior_precision))
        super().__init__(method, gradient_reader(method, meter, self.prior_precision), GRADIENT_READINGS, weights)

    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        settings = self._settings("rank", "steps", "curvature", "prior_precision", "seed")
        return settings | {"spectrum": self.diagnostics.plain()}, {"basis": self.basis}
