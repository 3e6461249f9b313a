"""SCOD (Sharma, Azizan and Pavone, 2021): a low-rank posterior from one randomized pass over the data."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from slu.artifacts import stored
from slu.artifacts.artifact import Loaded
from slu.baselines.base import (
    GRADIENT_READINGS,
    Baseline,
    FittedScore,
    allowed_rank,
    check_curvature,
    check_prior,
    gradient_reader,
    resolve_prior,
    settle_rank,
)
from slu.baselines.eigenbasis import checked_basis, remainder_meter
from slu.budgets import Budget, Cost, Size, gradients
from slu.budgets.memory import explain_out_of_memory
from slu.checks import whole
from slu.curvature import RootRows
from slu.data import batch_count
from slu.errors import SettingError, unknown
from slu.gradients import Forward
from slu.likelihoods import Likelihood
from slu.parameters import Choice
from slu.progress import Bar
from slu.seeds import derived_seed
from slu.sketches import SKETCHES, SketchSpec, build, checked
from slu.subspace import SinglePass

FACTORS = ("exact", "hessian")
"""What stands for the square root of the output Hessian in the sketch."""


def scod_cost(rank: int, size: Size, rows: int | None = None) -> Cost:
    """A randomized decomposition of T vectors (6 k + 4 by default) in one pass, with whole gradients beside it."""
    p = size.parameters * size.bytes_each
    kept = rank * p + rank * size.bytes_each
    rows = 6 * rank + 4 if rows is None else rows
    return Cost(kept, rows * p + gradients(size, whole=True), kept + gradients(size), 1)


@final
class SCOD(Baseline["ScodScore"]):
    """How much does the predicted distribution vary over weights that explain the data as well?

    `fit` sketches the curvature G = Σ (LᵀJ)ᵀ (LᵀJ) with two random test matrices in a single pass, and finds leading
    eigenvectors U and eigenvalues Λ from the sketch. With α the precision of the weights' prior, the score is the trace
    of LᵀJ (U Λ Uᵀ + α I)⁻¹ JᵀL = (‖LᵀJ‖² - Σ w_i ‖LᵀJ u_i‖²) / α with w_i = λ_i/(λ_i + α).

    Other ways to write it. SCOD's authors have the covariance as ½ (G + I/(2 ε²))⁻¹: α = 1/(2 ε²) and half of this
    score, which leaves every ranking as it is. The sketching paper writes the norm of (I - U W Uᵀ) Jᵀ, W = diag(w),
    without L: its square is ‖J‖² - Σ (1 - (1 - w_i)²) ‖J u_i‖², where reading "variance" times α is
    ‖J‖² - Σ w_i ‖J u_i‖². The two agree outside the subspace; inside of it what is left is weighed by
    (1 - w_i)² = α²/(λ_i + α)² there, by α/(λ_i + α) here, both near zero where λ_i is above α.

    Args:
        model, likelihood, rank, prior_precision, params, forward, seed: As of `Baseline`.
        budget: As of `Baseline`. Fitting holds far more.
        sketch_rows: T, the vectors of length p held while fitting, by default 6 k + 4; a third of them
            find the range of G, the rest how it acts there. The eigenvectors are truer the more. At
            least 2 k + 6: below, the expected error has no bound. From p on nothing is sketched.
        factor: "exact" sketches with L, the square root of the Hessian H in the outputs. "hessian" is
            what the sketching paper's authors ran, H in place of L, so that Σ Jᵀ H² J is sketched:
            confident points count for even less. The score itself has the true L either way.
        curvature: "ggn", "fisher" or "empirical-fisher". The Hessian is no sum of squares; it is refused.

    Cost: one pass and t gradients per point, each sketched twice in 2 T p operations. While fitting T p
    numbers (22 p for rank 3), two sketches of p/8 bytes, and one chunk of gradients; kept are k p.

    Numerics: see `slu.subspace.SinglePass`. The test matrices are "block_srft" sketches: all but p/4 bytes of them is
    drawn from seeds, and unlike hashes they reach directions with a handful of nonzero entries, such as a bias.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        rank: int | None = None,
        budget: Budget | None = None,
        sketch_rows: int | None = None,
        prior_precision: float | str = 1.0,
        factor: str = "exact",
        curvature: str = "ggn",
        params: Choice = None,
        forward: Forward | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, likelihood, params, forward)
        self.prior_precision = check_prior(prior_precision)
        check_curvature(curvature, hessian="is no sum of squares that could be sketched")
        if factor not in FACTORS:
            raise unknown("factor", factor, FACTORS)
        if factor == "hessian" and curvature != "ggn":
            raise SettingError(
                f"factor='hessian' stands for the factor of the GGN; curvature={curvature!r} is made of gradients and "
                "has none. Leave one of the two out"
            )
        self.rank = settle_rank("SCOD", rank, budget, self.network.selection, scod_cost)
        self.rank_from_budget = rank is None
        usual, least = 6 * self.rank + 4, 2 * self.rank + 6
        self.sketch_rows = usual if sketch_rows is None else whole("sketch_rows", sketch_rows)
        # Expected errors are bounded where the range has two rows above the rank, and the action two above it.
        if sketch_rows is not None and self.sketch_rows < least:
            raise SettingError(
                f"sketch_rows must be at least 2·rank + 6, {least} for rank {self.rank}, got {self.sketch_rows}; "
                f"left out it is 6·rank + 4, {usual}"
            )
        self.factor = factor
        self.curvature = curvature
        self.seed = whole("the seed", seed)

    def _cost(self, size: Size) -> Cost:
        specs = self._tests()
        cost = scod_cost(self.rank, size, sum(spec.size for spec in specs))
        state = sum(SKETCHES[spec.kind].state_bytes_of(spec, size.bytes_each) for spec in specs)
        return dataclasses.replace(cost, fitting=cost.fitting + state)

    @torch.inference_mode(False)
    def fit(self, loader: Any, *, progress: bool | None = None) -> ScodScore:
        """Find directions and eigenvalues; the loader is read once. See `Baseline.fit`."""
        selection = self.network.selection
        self.network.check_weights()
        sketched = _HessianAsFactor(self.likelihood) if self.factor == "hessian" else self.likelihood
        factors = RootRows(self.network, sketched, loader, kind=self.curvature, seed=self.seed, whole=True)
        with (
            explain_out_of_memory("fitting SCOD", self.cost, selection.device),
            Bar("fit", batch_count(loader, self.network.reader), progress) as bar,
        ):
            tests = (build(spec, device=selection.device, dtype=selection.dtype) for spec in self._tests())
            held = SinglePass(*tests)
            factors.feed(lambda rows: held.add(rows.pieces), bar.advance)
            eigenvalues, basis = held.leading(allowed_rank(self, factors))
        return ScodScore(self, eigenvalues, basis, factors.points)

    def _tests(self) -> tuple[SketchSpec, ...]:
        """The test matrices: a third of T rows for the range, the rest for the action; or both the identity."""
        p, rows = self.network.selection.count, self.sketch_rows
        if rows >= p:
            return SketchSpec("identity", p, p), SketchSpec("identity", p, p)
        first = max(self.rank + 2, (rows - 1) // 3)
        sizes = {"range": first, "corange": rows - first}
        return tuple(
            checked(SketchSpec("block_srft", p, size, derived_seed(self.seed, "scod", name)))
            for name, size in sizes.items()
        )

    @classmethod
    def _restored(cls, loaded: Loaded, model: nn.Module, forward: Forward | None) -> ScodScore:
        points, method = stored.whole(loaded.settings, "points", 1), cls._of(loaded, model, forward, beside="points")
        values = stored.tensor(loaded.tensors, "eigenvalues", (None,), torch.float64).numpy()
        basis = checked_basis(loaded, values, method)
        return ScodScore(method, values, basis, points, loaded.weights)


@final
class ScodScore(FittedScore[SCOD]):
    """The score made by `SCOD.fit`; never negative.

    Its readings are those of gradients, see `FittedScore`; the default is SCOD's own, "fisher", and "variance" that of
    the sketching paper.

    Attributes:
        prior_precision: α as a number, also where the setting is "paper".
        basis: (r, p) orthonormal rows, r at most the rank.
        eigenvalues: (r,) of the curvature summed over data, largest first, in float64.
        points: n, of the fit.

    Cost: t gradients per input, and 2 r p operations on each.
    """

    def __init__(
        self,
        method: SCOD,
        eigenvalues: np.ndarray,
        basis: Tensor,
        points: int,
        weights: dict[str, str] | None = None,
    ) -> None:
        self.eigenvalues = eigenvalues
        self.basis = basis
        self.points = points
        self.prior_precision = resolve_prior(method.prior_precision, points)
        meter = remainder_meter(basis, eigenvalues / (eigenvalues + self.prior_precision))
        readings = ("fisher", *(name for name in GRADIENT_READINGS if name != "fisher"))
        super().__init__(method, gradient_reader(method, meter, self.prior_precision), readings, weights)

    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        settings = self._settings("rank", "sketch_rows", "prior_precision", "factor", "curvature", "seed")
        tensors = {"basis": self.basis, "eigenvalues": torch.from_numpy(self.eigenvalues)}
        return settings | {"points": self.points}, tensors


@final
class _HessianAsFactor:
    """A likelihood with H itself in place of its square root, as the sketching paper's authors have it."""

    def __init__(self, likelihood: Likelihood) -> None:
        self._own = likelihood

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._own.loss(outputs, targets)

    def hessian_product(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        return self._own.hessian_product(outputs, vectors)

    def factor_product(self, outputs: Tensor, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        del transpose  # H is symmetric
        return self._own.hessian_product(outputs, vectors)

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        return self._own.sample(outputs, uniform)
