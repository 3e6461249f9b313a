"""Leading eigenvectors of a curvature, kept in full: what LocalEnsemble and LowRankLaplace are made of.

Letters: G (p, p) the curvature; V (k, p) orthonormal rows, the k Lanczos vectors; T = W diag(θ) Wᵀ
the tridiagonal matrix with θ the Ritz values; U (r, p) the Ritz vectors kept, rows of Wᵀ V; g a gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slu.artifacts.artifact import Loaded
from slu.baselines.base import Baseline, settle_rank
from slu.budgets import Budget, Cost, Size, gradients
from slu.budgets.memory import explain_out_of_memory
from slu.checks import whole
from slu.curvature import CURVATURES, Curvature
from slu.errors import DamagedFileError, NumericalError, SettingError, unknown
from slu.gradients import Meter, Pieces
from slu.krylov import Tridiagonal, high_memory, resumed, start_vector
from slu.parameters import Selection
from slu.progress import Bar
from slu.subspace import orthonormal_rows

_WIDE = 1 << 17  # numbers of U, or of gradients, taken to float64 at a time: a megabyte

# A Krylov space has one dimension more than G has rank: the part of the start that G does not move. Rounding brings
# that part back, up to three times on the networks of the tests; steps beyond this many are made of it alone.
_UNMOVED = 8


@dataclass(frozen=True)
class Search:
    """Which eigenvectors of which curvature are looked for, and how long.

    Attributes:
        rank: Directions kept at most.
        steps: k, Lanczos steps at most.
        curvature: A kind of the table CURVATURES.
        keeps_negative: Whether directions of negative curvature may be kept.
        seed: Of start vector and sampled labels.
        rank_from_budget: Whether the rank was chosen and not given: then the data may end it early.
    """

    rank: int
    steps: int
    curvature: str
    keeps_negative: bool
    seed: int
    rank_from_budget: bool


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


def settle_search(
    method: str,
    selection: Selection,
    cost: Callable[[int, Size], Cost],
    *,
    rank: int | None,
    budget: Budget | None,
    steps: int | None,
    curvature: str,
    seed: int,
    keeps_negative: bool = False,
) -> Search:
    """The search from what a user gave, checked.

    Raises:
        BudgetError, SettingError: As `settle_rank`; steps below the rank or above p; an
            unknown curvature.
    """
    if curvature not in CURVATURES:
        raise unknown("curvature", curvature, CURVATURES)
    settled = settle_rank(method, rank, budget, selection, cost)
    # The start vector's part outside the range of G takes one dimension of the Krylov space.
    taken = min(settled + 1, selection.count) if steps is None else whole("steps", steps)
    if not settled <= taken <= selection.count:
        source = "" if rank is not None else " (that of the budget; a rank= of one's own may be lower)"
        raise SettingError(
            f"steps must lie between the rank, {settled}{source}, and the number of selected parameters, "
            f"{selection.count}; got {taken}"
        )
    return Search(settled, taken, curvature, keeps_negative, whole("the seed", seed), rank is None)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """How the directions came about and how far to trust them.

    Attributes:
        steps: Lanczos steps taken.
        effective_rank: r, the directions kept.
        null: Directions left out because the curvature does not move them beyond rounding.
        negative: Ritz values below zero beyond rounding, kept or not; only a Hessian has them.
        exhausted: Whether the Krylov space ended: then it holds every direction that this start
            vector can find, and the Ritz values are eigenvalues.
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
        """What `plain` gave.

        Raises:
            SettingError, KeyError, TypeError: Something is missing, too much, or no number.
        """
        fields = dict(plain)
        for name in ("steps", "effective_rank", "null", "negative", "points", "passes"):
            fields[name] = whole(name, fields[name], least=0 if name in ("null", "negative") else 1)
        for name in ("ritz_values", "residuals"):
            try:
                fields[name] = np.array(fields[name], dtype=np.float64)
            except ValueError as reason:
                raise SettingError(f"{name} are no numbers: {reason}") from reason
        return cls(**fields)

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


@dataclass(frozen=True, eq=False)
class Eigenbasis:
    """U and where it came from.

    Attributes:
        vectors: (r, p), rows orthonormal and ordered as the Ritz values.
        spectrum: Ritz values, residuals, counts.
    """

    vectors: Tensor
    spectrum: Spectrum


def find_eigenbasis(method: Baseline[Any], search: Search, loader: Any, progress: bool | None) -> Eigenbasis:
    """High-memory Lanczos on the curvature over a loader, and the Ritz vectors that are kept.

    Raises:
        DataError, ChangedDataError: As `Curvature`.
        SettingError: A rank that was given and is above what the data allow.
        NumericalError: No direction has curvature of the wanted sign, or products are not finite.

    Cost: k passes; k p numbers beside those of the recurrence. The Ritz vectors are written over
    V, a few columns at a time. Where V has more rows than the rank asked for, or twice as many as
    were kept, the r rows are copied to let go of the rest.

    Numerics: V is orthonormal to rounding, so there are no ghosts. Directions with a Ritz value that is
    rounding of the largest are the start vector's part outside the range of G, or noise of a
    recurrence at its end; they are left out. Of an eigenvalue that occurs several times, as in a
    linear model for several outputs, Lanczos finds one direction.
    """
    begun = time.monotonic()
    network = method.network
    network.check_weights()
    operator = Curvature(network, method.likelihood, loader, kind=search.curvature, seed=search.seed)
    with (
        explain_out_of_memory(f"fitting {type(method).__name__}", method.cost, network.selection.device),
        Bar("fit", search.steps, progress) as bar,
    ):
        held, tridiagonal = _lanczos(search, operator, bar.advance)
        combinations, spectrum = _leading(search, min(search.rank, operator.rank_bound), tridiagonal, held.dtype)
        vectors = _within(search.rank, orthonormal_rows(held, combinations))
    spectrum = replace(spectrum, points=operator.points, passes=operator.passes, seconds=time.monotonic() - begun)
    return Eigenbasis(vectors, spectrum)


def _lanczos(search: Search, operator: Curvature, advance: Callable[[], None]) -> tuple[Tensor, Tridiagonal]:
    """V, in memory that may be overwritten, and T."""
    first = next(high_memory(operator, start_vector(operator, search.seed), 1))
    # Only now is known what the data allow; until then no memory is taken for more than one vector.
    _check_rank(search, operator)
    steps = min(search.steps, operator.rank_bound + _UNMOVED, operator.shape[0])
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


def _check_rank(search: Search, operator: Curvature) -> None:
    if search.rank > operator.rank_bound and not search.rank_from_budget:
        raise SettingError(
            f"rank {search.rank} is above what the data allow: {operator.points} points of {operator.outputs} outputs "
            f"give a curvature ({search.curvature}) of rank {operator.rank_bound} at most. Lower the rank or fit on "
            "more points"
        )


def _leading(search: Search, rank: int, tridiagonal: Tridiagonal, dtype: torch.dtype) -> tuple[np.ndarray, Spectrum]:
    """The columns of W that are kept, (k, r), and what they are."""
    values, combinations = tridiagonal.eigh()
    rounding = 10 * float(torch.finfo(dtype).eps) * float(np.abs(values).max())
    moved = np.abs(values) > rounding
    # Without a Hessian what is negative is rounding, so it must not be kept there either.
    wanted = moved if search.keeps_negative else values > rounding
    order = np.argsort(-np.abs(values), kind="stable")
    kept = order[wanted[order]][:rank]
    if not len(kept):
        raise NumericalError(_nothing(bool(moved.any())))
    spectrum = Spectrum(
        steps=len(tridiagonal),
        effective_rank=len(kept),
        null=int((~moved).sum()),
        negative=int((values < -rounding).sum()),
        exhausted=tridiagonal.coupling == 0,
        ritz_values=values[kept],
        residuals=np.abs(tridiagonal.coupling * combinations[-1, kept]),
        points=0,
        passes=0,
        seconds=0.0,
    )
    return combinations[:, kept], spectrum


def _nothing(negative: bool) -> str:
    if negative:
        return (
            "the curvature is negative in every direction tried: the network is at no minimum of its loss. Train it "
            "further, take more steps, or use curvature='ggn'"
        )
    return (
        "the curvature is zero in every direction tried: the outputs do not depend on the selected parameters, "
        "or the network is so sure of every point that nothing is left to differentiate"
    )


def _within(rank: int, vectors: Tensor) -> Tensor:
    """The same rows; copied where there is memory behind them for more than `rank` of them."""
    return vectors.clone() if vectors.untyped_storage().nbytes() > rank * vectors[0].nbytes else vectors


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

    def measure(pieces: Pieces, shape: tuple[int, int]) -> Tensor:
        squared = torch.zeros(shape, dtype=torch.float64, device=vectors.device)
        coefficients = squared.new_zeros(*shape, len(vectors))
        columns = max(1, _WIDE // max(len(vectors), shape[0] * shape[1]))
        for start, values in pieces:
            for begin in range(0, values.shape[-1], columns):
                wide = values[..., begin : begin + columns].double()
                place = start + begin
                squared += wide.square().sum(-1)
                coefficients += wide @ vectors[:, place : place + wide.shape[-1]].double().T
            del values  # or it would stay while the next one is formed
        remainder = (squared - coefficients.square() @ known).clamp(min=0)
        return torch.stack([squared, remainder])

    return measure


def stored_eigenbasis(path: str | Path, loaded: Loaded, plain: Any, search: Search, selection: Selection) -> Eigenbasis:
    """The eigenbasis of a file, on the network's device.

    Args:
        path: Of the file, for messages.
        loaded: Its content.
        plain: The spectrum as it was saved.
        search: With the settings of the file.
        selection: The parameters it is for.

    Raises:
        DamagedFileError: Shapes or values that do not fit together.
    """
    spectrum, basis = Spectrum.from_plain(plain), loaded.tensors["basis"]
    values, rank = spectrum.ritz_values, spectrum.effective_rank
    if not rank == len(basis) == len(spectrum.residuals):
        raise DamagedFileError(
            f"{path} does not fit together: {rank} directions and {len(spectrum.residuals)} residuals are in its "
            f"header, a basis of the shape {tuple(basis.shape)} in the file. Fit and save anew"
        )
    basis = checked_basis(path, basis, values, selection, most=search.rank, negative=search.keeps_negative)
    return Eigenbasis(basis, spectrum)


def checked_basis(
    path: str | Path, basis: Tensor, values: np.ndarray, selection: Selection, *, most: int, negative: bool = False
) -> Tensor:
    """The basis of a file on the network's device, where it fits the parameters and its eigenvalues.

    Args:
        path: Of the file, for messages.
        basis: (r, p) as it was saved.
        values: (r,) its eigenvalues.
        selection: The p parameters.
        most: The rank of the settings; r may be below it.
        negative: Whether eigenvalues may be negative.

    Raises:
        DamagedFileError: Shapes or values that do not fit together.
    """
    shapes = tuple(values.shape), tuple(basis.shape)
    if shapes != ((len(basis),), (len(basis), selection.count)) or not 1 <= len(basis) <= most:
        raise DamagedFileError(
            f"{path} does not fit together: a rank of at most {most} and {selection.count} parameters are expected, "
            f"eigenvalues and basis of the shapes {shapes} are in the file. Fit and save anew"
        )
    if not np.isfinite(values).all() or not (negative or (values > 0).all()):
        raise DamagedFileError(
            f"the eigenvalues in {path} cannot be: {values}; they must be finite{'' if negative else ' and above 0'}. "
            "Fit and save anew"
        )
    return basis.to(selection.device, selection.dtype)
