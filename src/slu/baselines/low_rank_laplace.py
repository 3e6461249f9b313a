"""The linearized Laplace approximation with a low-rank curvature: a Gaussian posterior of the weights."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from slu.baselines.base import check_prior, resolve_prior
from slu.baselines.eigenbasis import EigenbasisBaseline, EigenbasisScore, Spectrum, eigenbasis_cost
from slu.budgets import Budget, Cost, Size
from slu.gradients import Forward
from slu.likelihoods import Likelihood
from slu.parameters import Choice


def low_rank_laplace_cost(rank: int, size: Size, steps: int | None = None, hessian: bool = False) -> Cost:
    """That of the eigenbasis, and k eigenvalues."""
    cost, values = eigenbasis_cost(rank, size, steps, hessian), rank * size.bytes_each
    return Cost(cost.artefact + values, cost.fitting + values, cost.querying + values, cost.passes)


@final
class LowRankLaplace(EigenbasisBaseline["LowRankLaplaceScore"]):
    """How much do the network's outputs vary over weights that explain the data as well?

    `fit` finds leading eigenvectors U and eigenvalues Λ of the curvature G by Lanczos with every vector held. With α
    the precision of the weights' prior, the posterior's covariance is (U Λ Uᵀ + α I)⁻¹, and the score is the variance
    of the linearized outputs under it: the trace of J (U Λ Uᵀ + α I)⁻¹ Jᵀ = (‖J‖² - Σ λ/(λ + α) ‖J u‖²) / α. As α falls
    below every λ, α times it becomes the score of `LocalEnsemble`.

    Args:
        model, likelihood, rank, budget, params, forward, seed: As of `Baseline`.
        prior_precision: α, as of `Baseline`. With "paper" λ/(λ + α) is nearly 1 for every direction kept, and the
            scores are nearly those of `LocalEnsemble` over α.
        steps: Lanczos steps, as of `EigenbasisBaseline`.
        curvature: "ggn", "fisher", "empirical-fisher" or "hessian". A negative eigenvalue of the Hessian is no
            precision; it is clipped to zero, which leaves its direction to the prior: such directions are left out,
            and positive ones take their places.

    Cost: as of `EigenbasisBaseline`, and one eigenvalue per direction.

    Numerics: as of `EigenbasisBaseline`. Weights λ/(λ + α) are computed in float64. A direction that has not
    converged enters with its Ritz value, which is below the eigenvalue it belongs to.
    """

    cost_rule = staticmethod(low_rank_laplace_cost)

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
        super().__init__(
            model, likelihood, params, forward, rank=rank, budget=budget, steps=steps, curvature=curvature, seed=seed
        )
        self.prior_precision = check_prior(prior_precision)

    def _score(self, basis: Tensor, spectrum: Spectrum, weights: dict[str, str] | None = None) -> LowRankLaplaceScore:
        return LowRankLaplaceScore(self, basis, spectrum, weights)


@final
class LowRankLaplaceScore(EigenbasisScore[LowRankLaplace]):
    """The score made by `LowRankLaplace.fit`, see `EigenbasisScore`.

    "relative" is 1/α where the data say nothing, and towards 0 where they say everything.

    Attributes:
        prior_precision: α as a number, also where the setting is "paper".
    """

    own_setting = "prior_precision"

    def __init__(
        self, method: LowRankLaplace, basis: Tensor, spectrum: Spectrum, weights: dict[str, str] | None = None
    ) -> None:
        self.prior_precision = resolve_prior(method.prior_precision, spectrum.points)
        super().__init__(method, basis, spectrum, weights, self.prior_precision)
