"""Leading eigenvectors of a curvature, stored unsketched, for LocalEnsemble and LowRankLaplace.

Letters: G (p, p) the curvature; V (k, p) orthonormal rows, the k Lanczos vectors; T = W diag(θ) Wᵀ
the tridiagonal matrix with θ the Ritz values; U (r, p) the Ritz vectors kept, rows of Wᵀ V; g a gradient.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from slu.artifacts import stored
from slu.artifacts.artifact import Loaded
from slu.baselines.base import (
    GRADIENT_READINGS,
    Baseline,
    FittedScore,
    MethodType,
    ScoreType,
    allowed_rank,
    check_curvature,
    gradient_reader,
    settle_rank,
)
from slu.budgets import Budget, Cost, Size, gradients
from slu.budgets.memory import explain_out_of_memory
from slu.checks import whole
from slu.curvature import Curvature
from slu.errors import NumericalError, SettingError
from slu.gradients import Forward, Meter, Rows
from slu.krylov import Tridiagonal, high_memory, resumed, start_vector
from slu.likelihoods import Likelihood
from slu.parameters import Choice
from slu.progress import Bar
from slu.subspace import orthonormal_rows
from slu.subspace.basis import zero_curvature

_WIDE = 1 << 17  # numbers of U, or of gradients, converted to float64 at a time: a megabyte

# A Krylov space can have one dimension more than the rank of G: the start vector's part in the null space. Rounding can
# repeat that part, up to three times on the networks of the tests; steps beyond this many consist of it alone.
_NULL_STEPS = 8


def eigenbasis_cost(rank: int, size: Size, steps: int | None = None, hessian: bool = False) -> Cost:
    """Lanczos with every vector held: one copy per step beside the four of the recurrence (five on the Hessian).

    By default there is one step more than the rank. The directions kept are copied out once the
    vectors of the recurrence are freed.
    """
    p = size.parameters * size.bytes_each
    steps = min(rank + 1, size.parameters) if steps is None else steps
    work = (5 if hessian else 4) * p + size.kernel * size.bytes_each
    copied = rank * p if steps > rank else 0
    return Cost(rank * p, steps * p + max(work, copied), rank * p + gradients(size), steps)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Diagnostics of the directions.

    Attributes:
        steps: Lanczos steps taken.
        effective_rank: r, the directions kept.
        null: Directions dropped because the curvature maps them to zero up to rounding.
        negative: Ritz values below zero beyond rounding, kept or not; only a Hessian has them.
        exhausted: Whether the Krylov space ended: then it holds every direction reachable from this start
            vector, and the Ritz values are eigenvalues.
        ritz_values: (r,) θ of the directions kept, largest magnitude first.
        residuals: (r,) norms ‖G u - θ u‖: small against θ where a direction has converged.
        points, passes, seconds: Of the fit: n, passes over the data, time.
    """

    steps: int
    effective_rank: int
    null: int
    negative: int
    exhausted: bool
    ritz_values: np.ndarray
    residuals: np.ndarray
    points: int
    passes: int
    seconds: float

    def plain(self) -> dict[str, Any]:
        """As plain numbers and lists, for a header."""
        return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in vars(self).items()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Spectrum:
        """What `plain` gave; a DamagedFileError where a field is missing or cannot be what it is."""
        rank = stored.whole(plain, "effective_rank", 1)
        counts: dict[str, Any] = {name: stored.whole(plain, name, 1) for name in ("steps", "points", "passes")}
        counts |= {name: stored.whole(plain, name) for name in ("null", "negative")}
        counts |= {name: np.array(stored.numbers(plain, name, rank)) for name in ("ritz_values", "residuals")}
        exhausted, seconds = stored.truth(plain, "exhausted"), stored.number(plain, "seconds", 0.0)
        return cls(effective_rank=rank, exhausted=exhausted, seconds=seconds, **counts)

    def __str__(self) -> str:
        converged = int((self.residuals <= 0.01 * np.abs(self.ritz_values)).sum())
        ended = ", the Krylov space was exhausted" if self.exhausted else ""
        lines = {
            "effective rank": f"{self.effective_rank} of {self.steps} steps{ended}",
            "without": f"{self.null} directions without curvature; {self.negative} Ritz values were negative",
            "Ritz values": f"{self.ritz_values[0]:.4g} down to {self.ritz_values[-1]:.4g}, {converged} within 1 %",
            "data": f"{self.points} points, {self.passes} passes, {self.seconds:.1f} s",
        }
        return "\n".join(f"{name:<16}{text}" for name, text in lines.items())


class EigenbasisBaseline(Baseline[ScoreType]):
    """A baseline of leading eigenvectors of the curvature, computed by Lanczos with every vector held.

    Args:
        steps: Lanczos steps, each one pass over the data; by default one more than the rank. Of the space that they
            span, the Ritz vectors with the largest Ritz values are kept: more steps make them more accurate. With no
            more steps than the rank, the last one is almost the random start vector (cosine 0.9999 for a LeNet at rank
            3). What the paper's authors run as "rank 3" is rank=2, steps=3: they keep
            int(0.9 · 3) of their vectors.

    Attributes:
        keeps_negative: Whether directions of negative curvature, which only a Hessian has, may be kept.

    Cost: `steps` passes over the data, each about 5/3 of a training epoch's gradients. While fitting (steps + 4) p
    numbers and one batch's activations, one p more on the Hessian; where steps are more than the rank at least
    (steps + rank) p. Kept are rank · p.

    Numerics: see `score_of` on directions without curvature, and `remainder_meter` on why the score's sums are
    taken in float64.
    """

    cost_rule: ClassVar[Callable[..., Cost]] = staticmethod(eigenbasis_cost)
    keeps_negative: bool = False

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        params: Choice,
        forward: Forward | None,
        *,
        rank: int | None,
        budget: Budget | None,
        steps: int | None,
        curvature: str,
        seed: int,
    ) -> None:
        super().__init__(model, likelihood, params, forward)
        check_curvature(curvature)
        selection = self.network.selection
        self.rank = settle_rank(type(self).__name__, rank, budget, selection, self.cost_rule)
        self.rank_from_budget = rank is None
        # The start vector's part outside the range of G takes one dimension of the Krylov space.
        self.steps = min(self.rank + 1, selection.count) if steps is None else whole("steps", steps)
        if not self.rank <= self.steps <= selection.count:
            source = " (set by the budget; a given rank= may be lower)" if self.rank_from_budget else ""
            raise SettingError(
                f"steps must lie between the rank, {self.rank}{source}, and the number of selected parameters, "
                f"{selection.count}; got {self.steps}"
            )
        self.curvature = curvature
        self.seed = whole("the seed", seed)

    def _cost(self, size: Size) -> Cost:
        return self.cost_rule(self.rank, size, self.steps, self.curvature == "hessian")

    @torch.inference_mode(False)
    def fit(self, loader: Any, *, progress: bool | None = None) -> ScoreType:
        """Find directions and eigenvalues; the loader is read `steps` times. See `Baseline.fit`."""
        begun = time.monotonic()
        self.network.check_weights()
        operator = Curvature(self.network, self.likelihood, loader, kind=self.curvature, seed=self.seed)
        with (
            explain_out_of_memory(f"fitting {type(self).__name__}", self.cost, self.network.selection.device),
            Bar("fit", self.steps, progress) as bar,
        ):
            return self.score_of(*_lanczos(self, operator, bar.advance), operator, begun)

    def score_of(self, held: Tensor, tridiagonal: Tridiagonal, operator: Curvature, begun: float) -> ScoreType:
        """The score of high-memory Lanczos on the curvature of a loader.

        Args:
            held: V, which is overwritten.
            tridiagonal: T.
            operator: After its products.
            begun: When the fit began, by the monotonic clock.

        Raises as `fit`, and a NumericalError also where no direction has curvature of the wanted sign.

        Cost: the Ritz vectors are written over V, a few columns at a time. Where V has more rows than the rank asked
        for, or twice as many as were kept, the r rows are copied so that the rest is freed.

        Numerics: V is orthonormal to rounding, so there are no ghosts. Directions with a Ritz value that is rounding of
        the largest are the start vector's part outside the range of G, or noise of a recurrence at its end; they are
        left out. Of an eigenvalue that occurs several times, as in a linear model for several outputs, Lanczos finds
        one direction.
        """
        values, combinations = tridiagonal.eigh()
        rounding = 10 * float(torch.finfo(held.dtype).eps) * float(np.abs(values).max())
        kept = _leading(values, rounding, self.keeps_negative)[: allowed_rank(self, operator)]
        vectors = orthonormal_rows(held, combinations[:, kept])
        if vectors.untyped_storage().nbytes() > self.rank * vectors[0].nbytes:
            vectors = vectors.clone()
        spectrum = Spectrum(
            steps=len(tridiagonal),
            effective_rank=len(kept),
            null=int((np.abs(values) <= rounding).sum()),
            negative=int((values < -rounding).sum()),
            exhausted=tridiagonal.coupling == 0,
            ritz_values=values[kept],
            residuals=np.abs(tridiagonal.coupling * combinations[-1, kept]),
            points=operator.points,
            passes=operator.passes,
            seconds=time.monotonic() - begun,
        )
        return self._score(vectors, spectrum)

    @abstractmethod
    def _score(self, basis: Tensor, spectrum: Spectrum, weights: dict[str, str] | None = None) -> ScoreType:
        """The score of a basis."""

    @classmethod
    def _restored(cls, loaded: Loaded, model: nn.Module, forward: Forward | None) -> ScoreType:
        spectrum = Spectrum.from_plain(stored.table(loaded.settings, "spectrum"))
        method = cls._of(loaded, model, forward, beside="spectrum")
        basis = checked_basis(loaded, spectrum.ritz_values, method, negative=method.keeps_negative)
        return method._score(basis, spectrum, loaded.weights)


class EigenbasisScore(FittedScore[MethodType]):
    """The score made by a `fit` of eigenvectors; never negative. Its readings are those of gradients.

    Attributes:
        basis: (r, p) orthonormal rows, the directions that the data determine.
        eigenvalues: (r,) their curvatures (Ritz values), signed, in float64.
        diagnostics: Steps, effective rank, Ritz values, residuals, passes, seconds.

    Args:
        method, weights: As of `FittedScore`.
        basis, spectrum: Of the fit.
        prior: α, which leaves a share α/(λ + α) of every direction and divides the score; None to remove them fully.

    Cost: t gradients per input, and 2 r p operations on each.
    """

    own_setting: ClassVar[str]  # the method's setting beside those of every eigenbasis

    def __init__(
        self,
        method: MethodType,
        basis: Tensor,
        spectrum: Spectrum,
        weights: dict[str, str] | None = None,
        prior: float | None = None,
    ) -> None:
        self.basis = basis
        self.eigenvalues = spectrum.ritz_values
        self.diagnostics = spectrum
        values, precision = self.eigenvalues, 1.0 if prior is None else prior
        subtracted = np.ones_like(values) if prior is None else values / (values + prior)
        read = gradient_reader(method, remainder_meter(basis, subtracted), precision)
        super().__init__(method, read, GRADIENT_READINGS, weights)

    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        settings = self._settings("rank", "steps", "curvature", self.own_setting, "seed")
        return settings | {"spectrum": self.diagnostics.plain()}, {"basis": self.basis}


def _lanczos(
    method: EigenbasisBaseline[Any], operator: Curvature, advance: Callable[[], None]
) -> tuple[Tensor, Tridiagonal]:
    """V, in memory that may be overwritten, and T."""
    first = next(high_memory(operator, start_vector(operator, method.seed), 1))
    # The rank that the data allow is known only after one pass; until then one vector is allocated.
    allowed_rank(method, operator)
    steps = min(method.steps, operator.rank_bound + _NULL_STEPS, operator.shape[0])
    held = first.vector.new_empty(steps, operator.shape[0])
    held[0] = first.vector
    tridiagonal = Tridiagonal.of([first])
    advance()
    rest = iter(()) if first.state is None else resumed(operator, replace(first.state, held=held), steps)
    del first  # it would keep its vectors alive
    for step in rest:
        tridiagonal.add(step)
        advance()
    return held[: len(tridiagonal)], tridiagonal


def _leading(values: np.ndarray, rounding: float, keeps_negative: bool) -> np.ndarray:
    """Places of the Ritz values of the wanted sign, largest magnitude first; a NumericalError where there is none."""
    # Other curvatures than the Hessian are negative only by rounding, which must not be kept.
    wanted = (np.abs(values) if keeps_negative else values) > rounding
    order = np.argsort(-np.abs(values), kind="stable")
    if wanted.any():
        return order[wanted[order]]
    if (values < -rounding).any():
        raise NumericalError(
            "the curvature is negative in every direction tried: the network is not at a minimum of its loss. Train it "
            "further, take more steps, or use curvature='ggn'"
        )
    raise zero_curvature()


def remainder_meter(vectors: Tensor, weights: np.ndarray) -> Meter:
    """Measures of rows g, as (2, samples, vectors) in float64: ‖g‖² and ‖g‖² - Σ w_i (u_i·g)².

    Args:
        vectors: U (r, p), orthonormal rows.
        weights: w (r,), from 0 to 1.

    Cost: 2 r p operations per row, in float64, in a few megabytes beside the row.

    Numerics: the difference of two squares cancels where g lies in the span of U. The gradient is
    freed when its coefficients are known, so its remainder cannot be formed as a vector; instead all
    sums are taken in float64. Sums in float32 leave 1e-7 to 1e-5 of ‖g‖² (measured, p from 2e4 to
    3e5), noise for every score below that share; sums in float64 leave what the rounding of U does,
    about ε/√p with U's own ε, 1e-9. What then falls below zero is rounding, and set to zero.
    """
    known = torch.from_numpy(weights).to(vectors.device)

    def measure(rows: Rows) -> Tensor:
        squared = torch.zeros(rows.shape, dtype=torch.float64, device=vectors.device)
        coefficients = squared.new_zeros(*rows.shape, len(vectors))
        columns = max(1, _WIDE // max(len(vectors), rows.shape[0] * rows.shape[1]))
        for start, values in rows.pieces:
            for begin in range(0, values.shape[-1], columns):
                wide = values[..., begin : begin + columns].double()
                place = start + begin
                squared += wide.square().sum(-1)
                coefficients += wide @ vectors[:, place : place + wide.shape[-1]].double().T
            del values  # or it would stay while the next one is formed
        remainder = (squared - coefficients.square() @ known).clamp(min=0)
        return torch.stack([squared, remainder])

    return measure


def checked_basis(loaded: Loaded, values: np.ndarray, method: Any, *, negative: bool = False) -> Tensor:
    """The (r, p) basis of a file on the network's device, r at most the rank, where its (r,) eigenvalues fit it.

    Raises:
        DamagedFileError: Shapes or values that do not fit together, or rows that are not orthonormal.
    """
    selection, sizes = method.network.selection, np.abs(values)
    if len(values) > method.rank or (np.diff(sizes) > 0).any() or not (negative or (values > 0).all()):
        signs = "the largest magnitude first" if negative else "above 0, the largest first"
        raise stored.wrong("the list of eigenvalues", values.tolist(), f"at most {method.rank}, {signs}")
    basis = stored.tensor(loaded.tensors, "basis", (len(values), selection.count), selection.dtype)
    stored.check_orthonormal(basis, "basis")
    return basis.to(selection.device)
