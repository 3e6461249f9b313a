"""The linearized Laplace approximation with a diagonal curvature: every weight on its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from slu.artifacts import stored
from slu.artifacts.artifact import Loaded
from slu.baselines.base import (
    GRADIENT_READINGS,
    Baseline,
    FittedScore,
    check_curvature,
    check_prior,
    gradient_reader,
    resolve_prior,
    settle_rank,
)
from slu.budgets import Budget, Cost, Size, gradients
from slu.budgets.memory import explain_out_of_memory
from slu.checks import whole
from slu.curvature import Curvature, RootRows, check_finite_diagonal, exact_diagonal
from slu.data import batch_count
from slu.errors import SettingError, unknown
from slu.gradients import Forward, Rows
from slu.likelihoods import Likelihood
from slu.parameters import Choice
from slu.progress import Bar
from slu.seeds import stream

DIAGONALS = ("exact", "hutchinson")
"""Where the diagonal comes from."""

NEGATIVE = ("clip", "shift")
"""What becomes of an estimate's negative entries: set to zero, or all entries raised until none is left."""

_PROBES = 100
_SQUARED = 1 << 18  # numbers squared and weighted at a time: they stay in the cache


def diagonal_laplace_cost(_: int, size: Size) -> Cost:
    """One number per parameter, from the gradients of every input; there is no rank."""
    p = size.parameters * size.bytes_each
    return Cost(p, p + gradients(size), p + gradients(size), 1)


@final
class DiagonalLaplace(Baseline["DiagonalLaplaceScore"]):
    """How much do the network's outputs vary over weights that explain the data, each moved alone?

    `fit` finds the diagonal d of the curvature G. With α the precision of the weights' prior, the
    posterior's covariance is diag(1/(d + α)), and the score is the variance of the linearized
    outputs under it: Σ over outputs of Σ_i g_i² / (d_i + α), g the rows of J.

    Args:
        model, likelihood, prior_precision, params, forward, seed: As of `Baseline`.
        diagonal: "exact", in one pass; or "hutchinson", estimated from products with random signs,
            as the authors have it. The estimate is there to explain their numbers.
        probes: Of "hutchinson": products, each one pass over the data; by default 100. That is 170
            training epochs' worth of gradients where "exact" takes t gradients per point; the authors
            take 10,000. An entry's error falls with 1/√probes and is often above the entry.
        negative: What becomes of negative entries of the estimate, of which the true diagonal has none:
            "clip" sets them to zero. "shift", the authors' way, raises the whole diagonal by the most
            negative entry (on digits an AUROC of 0.92 instead of 0.998).
        curvature: "ggn", "fisher" or "empirical-fisher". The Hessian's diagonal may be negative, which
            is no precision; it is refused.
        budget: Memory for what is kept, to be checked only: the method keeps p numbers, "1p".

    Cost: one pass and t gradients per point; p numbers kept, p and one chunk of gradients while
    fitting. "hutchinson": one pass per probe, and 4 p numbers while fitting.

    Numerics: see `slu.curvature.exact_diagonal` on long sums. d + α is above zero always.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        prior_precision: float | str = 1.0,
        diagonal: str = "exact",
        probes: int | None = None,
        negative: str = "clip",
        curvature: str = "ggn",
        params: Choice = None,
        forward: Forward | None = None,
        seed: int = 0,
        budget: Budget | None = None,
    ) -> None:
        super().__init__(model, likelihood, params, forward)
        self.prior_precision = check_prior(prior_precision)
        check_curvature(curvature, hessian="has a diagonal that may be negative, and is no sum of squares")
        if diagonal not in DIAGONALS:
            raise unknown("diagonal", diagonal, DIAGONALS)
        if negative not in NEGATIVE:
            raise unknown("way with negative entries", negative, NEGATIVE)
        if diagonal == "hutchinson":
            probes = _PROBES if probes is None else whole("probes", probes, least=1)
        elif probes is not None or negative != "clip":
            raise SettingError(
                f"probes={probes} and negative={negative!r} are settings of diagonal='hutchinson'; the exact diagonal "
                "needs no probes and has no negative entries. Leave them out, or add diagonal='hutchinson'"
            )
        self.probes = probes
        self.diagonal = diagonal
        self.negative = negative
        self.curvature = curvature
        self.seed = whole("the seed", seed)
        if budget is not None:
            settle_rank("DiagonalLaplace", None, budget, self.network.selection, diagonal_laplace_cost, most=1)

    def _cost(self, size: Size) -> Cost:
        cost = diagonal_laplace_cost(1, size)
        if self.probes is None:
            return cost
        # The sum, a probe, its product and one batch's gradient, and a convolution's copy.
        fitting = 4 * cost.artefact + size.kernel * size.bytes_each
        return dataclasses.replace(cost, fitting=fitting, passes=self.probes)

    @torch.inference_mode(False)
    def fit(self, loader: Any, *, progress: bool | None = None) -> DiagonalLaplaceScore:
        """Find the diagonal; the loader is read once, or once per probe. See `Baseline.fit`."""
        self.network.check_weights()
        with explain_out_of_memory("fitting DiagonalLaplace", self.cost, self.network.selection.device):
            return DiagonalLaplaceScore(self, *self._diagonal(loader, progress))

    def _diagonal(self, loader: Any, progress: bool | None) -> tuple[Tensor, int]:
        """The diagonal, and the points of the fit."""
        given = (self.network, self.likelihood, loader)
        with Bar("fit", self.probes or batch_count(loader, self.network.reader), progress) as bar:
            if self.probes is None:
                rows = RootRows(*given, kind=self.curvature, seed=self.seed)
                return exact_diagonal(rows, self.network.selection, bar.advance), rows.points
            operator = Curvature(*given, kind=self.curvature, seed=self.seed)
            estimate = hutchinson_diagonal(operator, self.probes, seed=self.seed, progress=bar.advance)
            return without_negative(estimate, self.negative), operator.points

    @classmethod
    def _restored(cls, loaded: Loaded, model: nn.Module, forward: Forward | None) -> DiagonalLaplaceScore:
        points, method = stored.whole(loaded.settings, "points", 1), cls._of(loaded, model, forward, beside="points")
        selection = method.network.selection
        diagonal = stored.tensor(loaded.tensors, "diagonal", (selection.count,), selection.dtype, least=0.0)
        return DiagonalLaplaceScore(method, diagonal.to(selection.device), points, loaded.weights)


@final
class DiagonalLaplaceScore(FittedScore[DiagonalLaplace]):
    """The score made by `DiagonalLaplace.fit`.

    Its readings are those of gradients, see `FittedScore`: "relative" is 1/α where the data say nothing, and towards 0
    where they say everything.

    Attributes:
        prior_precision: α as a number, also where the setting is "paper".
        diagonal: (p,) of the curvature summed over data, without α; never negative.
        points: n, of the fit.

    Cost: t gradients per input, and p operations on each.
    """

    def __init__(
        self, method: DiagonalLaplace, diagonal: Tensor, points: int, weights: dict[str, str] | None = None
    ) -> None:
        super().__init__(method, gradient_reader(method, self._energies), GRADIENT_READINGS, weights)
        self.diagonal = diagonal
        self.points = points
        self.prior_precision = resolve_prior(method.prior_precision, points)

    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        settings = self._settings("prior_precision", "diagonal", "probes", "negative", "curvature", "seed")
        return settings | {"points": self.points}, {"diagonal": self.diagonal}

    def _energies(self, rows: Rows) -> Tensor:
        """(2, samples, vectors): ‖g‖² and Σ g²/(d + α) of rows g; each piece is squared and dropped."""
        energies = self.diagonal.new_zeros(2, *rows.shape)
        width = max(1, _SQUARED // (rows.shape[0] * rows.shape[1]))
        for start, values in rows.pieces:
            places = self.diagonal[start : start + values.shape[-1]].split(width)
            for place, part in zip(places, values.split(width, -1), strict=True):
                squares = part.square()
                energies[0] += squares.sum(-1)
                energies[1] += squares.div_(place + self.prior_precision).sum(-1)
            del values  # or it would stay while the next one is formed
        return energies


def hutchinson_diagonal(
    operator: Any, probes: int, *, seed: int = 0, progress: Callable[[], None] = lambda: None
) -> Tensor:
    """The mean of v ⊙ G v over random signs v: diag(G) on average, for any operator with `@`.

    Raises:
        NumericalError: A product overflowed.

    Cost: one product, which is one pass over the data, per probe; v, G v and the sum beside it.

    Numerics: unbiased, but entry i has the variance Σ_{j≠i} G_ij² / probes. A curvature has a few large
    eigenvalues, so the off-diagonal of a row is large beside its diagonal: small entries drown in
    it and come out negative as often as positive, though no true one is. See `without_negative`.
    """
    draw = stream(seed, "probes")
    total = torch.zeros(operator.shape[0], dtype=operator.dtype, device=operator.device)
    for _ in range(probes):
        # Drawn on the CPU, the same for every device, then moved; as bytes until then.
        bits = torch.randint(0, 2, total.shape, dtype=torch.int8, generator=draw)
        probe = bits.mul_(2).sub_(1).to(total.device, total.dtype)
        total.addcmul_(probe, operator @ probe, value=1 / probes)
        progress()
    return check_finite_diagonal(total)


def without_negative(diagonal: Tensor, how: str) -> Tensor:
    """The same diagonal without negative entries, by a word of NEGATIVE; changed in place.

    "clip" changes only entries that are noise for certain. "shift" raises the whole diagonal by the
    most negative entry, which for one bad entry among millions buries all the small ones.
    """
    return diagonal.clamp_(min=0) if how == "clip" else diagonal.sub_(diagonal.min().clamp(max=0))
