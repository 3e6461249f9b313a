"""Local ensembles: what is left of an input's gradient outside the leading eigenvectors of the curvature."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from slu.artifacts.artifact import Loaded
from slu.baselines.base import GRADIENT_READINGS, Baseline, FittedScore, gradient_reader
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
from slu.errors import SettingError, unknown
from slu.gradients import Forward
from slu.likelihoods import Likelihood
from slu.parameters import Choice

# What becomes of directions of negative curvature, and whether they may be kept.
NEGATIVE = {"pinned": True, "free": False}


@final
class LocalEnsemble(Baseline["LocalEnsembleScore"]):
    """How much could the network's answer change in directions that its loss does not feel?

    `fit` finds leading eigenvectors U of the curvature G by Lanczos with every vector held. The
    score is the trace of J (I - U Uᵀ) Jᵀ: what `SLU` estimates through a sketch, exactly, for a
    rank that costs one copy of the parameters each.

    Args:
        model: Any trained module with outputs (b,) or (b, t). It is never changed.
        likelihood: "classification", "regression", "multilabel", or an object of one's own
            with the four methods of `slu.likelihoods.Likelihood`.
        rank: Directions kept, each p numbers. Left out, the budget sets it; what the data allow,
            n·t, ends it then, and refuses a rank that is given and above.
        budget: Memory for what is kept: "3p" (copies of the parameters), "2GB", or a whole number
            of floats. Where there is no rank either: "3p".
        steps: Lanczos steps, each one pass over the data; by default one more than the rank. Of the
            space that they span, the Ritz vectors with the largest |Ritz value| are kept: more
            steps make them truer eigenvectors. With no more steps than the rank the last of them is
            hardly anything but the random start vector (cosine 0.9999 for a LeNet at rank 3). What
            the paper's authors run as "rank 3" is rank=2, steps=3: they keep int(0.9 · 3) of their
            vectors.
        curvature: "ggn", "fisher", "empirical-fisher" or "hessian". The Hessian is a sum over
            data as the others are; the authors' is a sum of batch means, which has the same
            eigenvectors where batches are of one size.
        negative: What becomes of directions in which a Hessian is negative. "pinned": the loss
            changes there as well, only downwards, so such weights are not free to move; the largest
            magnitudes are kept, whatever their sign. "free": as the authors have it, the
            algebraically largest Ritz values are kept, negative ones never.
        params: Which parameters count: None for the trainable ones, names, globs, a predicate.
        forward: How to call the model on the inputs of a batch, forward(model, inputs).
        seed: Of start vector and sampled labels.

    Cost: `steps` passes over the data, each about 5/3 of a training epoch's gradients. While
    fitting (steps + 4) p numbers and one batch's activations, one p more on the Hessian; where steps
    are more than the rank at least (steps + rank) p. Kept are rank · p.

    Numerics: see `slu.baselines.eigenbasis.find_eigenbasis` on directions without curvature, and
    `remainder_meter` on why the score's sums are taken in float64.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        rank: int | None = None,
        budget: Budget | None = None,
        steps: int | None = None,
        curvature: str = "ggn",
        negative: str = "pinned",
        params: Choice = None,
        forward: Forward | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, likelihood, params, forward)
        if negative not in NEGATIVE:
            raise unknown("way with negative curvature", negative, NEGATIVE)
        self.search = settle_search(
            "LocalEnsemble",
            self.network.selection,
            eigenbasis_cost,
            rank=rank,
            budget=budget,
            steps=steps,
            curvature=curvature,
            keeps_negative=curvature == "hessian" and NEGATIVE[negative],
            seed=seed,
        )
        self.rank, self.steps = self.search.rank, self.search.steps
        self.curvature, self.seed = self.search.curvature, self.search.seed
        if curvature != "hessian" and negative != "pinned":
            raise SettingError(
                f"negative={negative!r} is about curvature='hessian'; {curvature!r} has no negative directions: "
                "leave it out"
            )
        self.negative = negative

    def _cost(self, size: Size) -> Cost:
        return eigenbasis_cost(self.rank, size, self.steps, self.curvature == "hessian")

    @torch.inference_mode(False)
    def fit(self, loader: Any, *, progress: bool | None = None) -> LocalEnsembleScore:
        """Find the directions; the loader is read `steps` times.

        Args:
            loader: Anything that yields `(inputs, targets)` or inputs, again and again; or one
                batch. Targets are used by the curvatures "hessian" and "empirical-fisher" only.
            progress: Whether to show a bar; by default in a terminal only.

        Raises:
            DataError: Empty, not finite, or of a shape the likelihood cannot take.
            ChangedDataError: Two passes saw different data.
            SettingError: The rank exceeds what the data allow, n·t.
            NumericalError: There is no curvature, or with negative="free" none that is positive.
        """
        return LocalEnsembleScore(self, find_eigenbasis(self, self.search, loader, progress))

    @classmethod
    def _restored(
        cls, path: str | Path, loaded: Loaded, model: nn.Module, forward: Forward | None
    ) -> LocalEnsembleScore:
        spectrum = loaded.settings.pop("spectrum")
        method = cls(model, loaded.likelihood, forward=forward, **loaded.settings)
        eigenbasis = stored_eigenbasis(path, loaded, spectrum, method.search, method.network.selection)
        return LocalEnsembleScore(method, eigenbasis, loaded.weights)


@final
class LocalEnsembleScore(FittedScore[LocalEnsemble]):
    """The score made by `LocalEnsemble.fit`; never negative.

    Readings: "variance" (the default), "relative" (that over ‖J‖², from 0 to 1), "fisher" (of the predicted
    distribution instead of the outputs) and "fisher-relative".

    Attributes:
        basis: (r, p) orthonormal rows, the directions that the data pin down.
        eigenvalues: (r,) their curvatures (Ritz values), signed, in float64.
        diagnostics: Steps, effective rank, Ritz values, residuals, passes, seconds.

    Cost: t gradients per input, and 2 r p operations on each.
    """

    def __init__(self, method: LocalEnsemble, eigenbasis: Eigenbasis, weights: dict[str, str] | None = None) -> None:
        self.basis: Tensor = eigenbasis.vectors
        self.eigenvalues: np.ndarray = eigenbasis.spectrum.ritz_values
        self.diagnostics: Spectrum = eigenbasis.spectrum
        meter = remainder_meter(self.basis, np.ones_like(self.eigenvalues))
        super().__init__(method, gradient_reader(method, meter), GRADIENT_READINGS, weights)

    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        settings = self._settings("rank", "steps", "curvature", "negative", "seed")
        return settings | {"spectrum": self.diagnostics.plain()}, {"basis": self.basis}
