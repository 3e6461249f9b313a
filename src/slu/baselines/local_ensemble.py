"""Local ensembles: what is left of an input's gradient outside the leading eigenvectors of the curvature."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from slu.baselines.eigenbasis import EigenbasisBaseline, EigenbasisScore, Spectrum
from slu.budgets import Budget
from slu.errors import SettingError, unknown
from slu.gradients import Forward
from slu.likelihoods import Likelihood
from slu.parameters import Choice

# What becomes of directions of negative curvature, and whether they may be kept.
NEGATIVE = {"pinned": True, "free": False}


@final
class LocalEnsemble(EigenbasisBaseline["LocalEnsembleScore"]):
    """How much could the network's answer change in directions that its loss does not feel?

    `fit` finds leading eigenvectors U of the curvature G by Lanczos with every vector held. The
    score is the trace of J (I - U Uᵀ) Jᵀ: what `SLU` estimates through a sketch, exactly, for a
    rank that costs one copy of the parameters each.

    Args:
        model, likelihood, rank, budget, params, forward, seed: As of `Baseline`.
        steps: Lanczos steps, as of `EigenbasisBaseline`.
        curvature: "ggn", "fisher", "empirical-fisher" or "hessian". The Hessian is a sum over data as the others are;
            the authors' is a sum of batch means, which has the same eigenvectors where batches are of one size.
        negative: What becomes of directions in which a Hessian is negative. "pinned": the loss changes there as well,
            only downwards, so such weights are not free to move; the largest magnitudes are kept, whatever their sign.
            "free": as the authors have it, the algebraically largest Ritz values are kept, negative ones never.

    Cost and numerics: as of `EigenbasisBaseline`.
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
        if negative not in NEGATIVE:
            raise unknown("way with negative curvature", negative, NEGATIVE)
        super().__init__(
            model, likelihood, params, forward, rank=rank, budget=budget, steps=steps, curvature=curvature, seed=seed
        )
        if curvature != "hessian" and negative != "pinned":
            raise SettingError(
                f"negative={negative!r} is about curvature='hessian'; {curvature!r} has no negative directions: "
                "leave it out"
            )
        self.negative = negative
        self.keeps_negative = curvature == "hessian" and NEGATIVE[negative]

    def _score(self, basis: Tensor, spectrum: Spectrum, weights: dict[str, str] | None = None) -> LocalEnsembleScore:
        return LocalEnsembleScore(self, basis, spectrum, weights)


@final
class LocalEnsembleScore(EigenbasisScore[LocalEnsemble]):
    """The score made by `LocalEnsemble.fit`, see `EigenbasisScore`; "relative" lies from 0 to 1."""

    own_setting = "negative"
