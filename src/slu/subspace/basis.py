"""A subspace in sketch space: its orthonormal basis, and the energies of vectors inside and outside of it.

Letters: g a gradient (p,), P the projector onto the true subspace, S the sketch, U_S the basis
of rank r in sketch space. All estimators estimate ‖(I - P) g‖²; the correction depends on the sketch and is
about s / (s - r), because a space of r dimensions captures by chance a share r/s of the sketch of a vector
outside of it. B (k, s) rows of which a basis is made, with M (k, r): U_Sᵀ = Mᵀ B.

With a ridge, the fraction v_j = α / (λ_j + α) of direction j with the eigenvalue λ_j is not projected out, so that
gᵀ (I - P) g becomes gᵀ α (G + α I)⁻¹ g, for G restricted to the subspace. Its part inside, Σ v_j (u_jᵀ S g)², is
the energy "reopened".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from slu.errors import NumericalError, SettingError

_CHUNK = 1024  # columns of B taken to float64 at a time


@dataclass(frozen=True, eq=False)
class Convergence:
    """How far Lanczos converged; diagnostics only.

    Attributes:
        steps: Lanczos steps taken.
        ghosts: Steps that added no direction because orthogonality was lost.
        null: Directions dropped because the curvature maps them to zero up to rounding.
        orthogonality: The largest cosine between two Lanczos vectors, through the sketch: about
            1/√s where they are orthogonal, 1 where a direction was repeated.
        exhausted: Whether the Krylov space ended before the steps asked for.
        ritz_values: (r,) approximate eigenvalues of the curvature, largest magnitude first; small
            ones may come out slightly negative through a short sketch. With `keep` they and the
            residuals are those of the rank-revealing basis.
        residuals: (r,) norms ‖G y - θ y‖: small against θ where a direction has converged.
        singular_values: (steps,) of the sketched Lanczos vectors, largest first: a ghost shows as one near zero.
    """

    steps: int
    ghosts: int
    null: int
    orthogonality: float
    exhausted: bool
    ritz_values: np.ndarray
    residuals: np.ndarray
    singular_values: np.ndarray


@dataclass(frozen=True)
class Energies:
    """Squared lengths, all of one shape.

    Attributes:
        exact: ‖g‖², from the gradient itself.
        captured: ‖U_Sᵀ S g‖², inside the basis.
        residual: ‖(I - U_S U_Sᵀ) S g‖², outside of it.
        reopened: The part of the captured energy that a ridge does not project out; 0 without one.
    """

    exact: Tensor
    captured: Tensor
    residual: Tensor
    reopened: Tensor

    def sum(self) -> Energies:
        """Summed over the last dimension: the energies of a trace over outputs."""
        return Energies(*(each.sum(-1) for each in (self.exact, self.captured, self.residual, self.reopened)))


@dataclass(frozen=True, eq=False)
class SketchedSubspace:
    """U_S, the orthonormal basis of r directions in sketch space.

    Attributes:
        basis: U_Sᵀ (r, s), rows orthonormal and ordered by eigenvalue.
        eigenvalues: λ (r,) of the curvature in these directions, float64; None where `keep` mixed them.
        correction: The sketch's factor for residuals outside r of its s dimensions.
        convergence: Of Lanczos; None after a single pass.
    """

    basis: Tensor
    eigenvalues: np.ndarray | None
    correction: float
    convergence: Convergence | None = None
    _openness: dict[float, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def openness(self, ridge: float) -> Tensor:
        """v (r,) = α / (λ + α), the fraction of each direction that is not projected out, with α = ridge Σ |λ|.

        Numerics: α scales with the curvature, so v does not depend on the unit of the loss or the number of points.
        """
        if ridge not in self._openness:
            self._openness[ridge] = self._opened(ridge)
        return self._openness[ridge]

    def _opened(self, ridge: float) -> Tensor:
        if not ridge:
            return self.basis.new_zeros(len(self.basis))
        if self.eigenvalues is None:
            raise SettingError(
                "a ridge needs the eigenvalues of all directions, unknown with keep=; omit one of the two"
            )
        values = np.abs(self.eigenvalues)
        alpha = ridge * float(values.sum())
        return torch.from_numpy(alpha / (values + alpha)).to(self.basis.device, self.basis.dtype)

    def correction_with(self, ridge: float) -> float:
        """The factor for residuals, given that a ridge reopens part of the captured energy.

        By chance each direction captures the share (1 - 1/correction)/r of the energy outside. The fraction v_j of it
        is already counted as reopened, so the correction must not add it a second time.
        """
        return self.correction - (self.correction - 1) * float(self.openness(ridge).mean())

    def energies(self, exact: Tensor, sketched: Tensor, ridge: float = 0.0) -> Energies:
        """Split sketched vectors (..., s) into the parts inside and outside the basis.

        Args:
            exact: (...) squared lengths of the vectors before sketching.
            sketched: (..., s).
            ridge: As in `openness`.

        Cost: 4 s r operations per vector.

        Numerics: the outside part is formed as a vector, not as a difference of squares, so a
        nearly captured vector keeps its relative accuracy and no energy is negative.
        """
        inside = sketched @ self.basis.T
        outside = (inside @ self.basis).neg_().add_(sketched)  # in place: s numbers per vector are many
        squares = inside.square()
        return Energies(exact, squares.sum(-1), outside.square_().sum(-1), squares @ self.openness(ridge))

    def stacked(self, exact: Tensor, sketched: Tensor, ridge: float) -> Tensor:
        """(4, ...) the energies as one tensor, as they are summed over rows."""
        parts = self.energies(exact, sketched, ridge)
        return torch.stack([parts.exact, parts.captured, parts.residual, parts.reopened])

    def outside(self, stacked: Tensor, estimator: str, ridge: float) -> Tensor:
        """(...) the energy outside the basis, from (4, ...) energies, by an estimator of the table."""
        return ESTIMATORS[estimator](Energies(*stacked), self.correction_with(ridge))


def ratio(energies: Energies, correction: float) -> Tensor:
    """The share outside in the sketch, corrected, times the exact ‖g‖²: the default.

    Nearly unbiased, with an error relative to itself of about sqrt(2 / (s - r)) for a captured
    vector and less for one outside, since the noise of the sketched norm cancels. May exceed
    ‖g‖² by that noise.
    """
    sketched = energies.captured + energies.residual
    outside = correction * energies.residual + energies.reopened
    return energies.exact * torch.where(sketched > 0, outside / sketched, torch.zeros_like(sketched))


def residual(energies: Energies, correction: float) -> Tensor:
    """The corrected residual in sketch space: unbiased, but carries the noise of the sketched norm."""
    return correction * energies.residual + energies.reopened


def difference(energies: Energies, correction: float) -> Tensor:
    """‖g‖² - ‖U_Sᵀ S g‖², as the paper has it.

    Biased by -r/s of what lies outside, with an absolute error of about sqrt(2/s) ‖g‖² however
    small the score: it is often negative for captured vectors.
    """
    del correction  # the paper has none
    return energies.exact - energies.captured + energies.reopened


ESTIMATORS: dict[str, Callable[[Energies, float], Tensor]] = {
    "ratio": ratio,
    "residual": residual,
    "difference": difference,
}


def eigh(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues, smallest first, and eigenvectors as columns of a symmetric matrix.

    By torch, not NumPy, which starts threads of its own, however many torch is told to use.
    """
    values, vectors = torch.linalg.eigh(torch.from_numpy(np.ascontiguousarray(matrix)))
    return values.numpy(), vectors.numpy()


def gram(rows: Tensor) -> np.ndarray:
    """B Bᵀ in float64, a chunk of columns at a time; (k + 1)² numbers."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for chunk in rows.split(_CHUNK, dim=1):
        wide = chunk.double()
        total += wide @ wide.T
    result = total.cpu().numpy()
    # LAPACK may hang or return garbage on these; they are caught before it.
    if not np.isfinite(result).all():
        raise NumericalError("the sketched vectors hold NaN or infinity; products with the curvature overflow")
    return result


def zero_curvature() -> NumericalError:
    """The error if no direction has curvature."""
    return NumericalError(
        "the curvature is zero in every direction tried: the outputs do not depend on the selected parameters, "
        "or the network is so confident at every point that its gradients underflow"
    )


def orthonormal_rows(rows: Tensor, combinations: np.ndarray) -> Tensor:
    """U_Sᵀ (r, s) = Mᵀ V_Sᵀ, written over the first r rows of B.

    Cost: s k r multiplications, in place but for one chunk of columns; a copy is made only to
    free B where at most half of it is used.

    Numerics: M alone leaves U_S orthonormal to about 1e-16/σ², so its own Gram matrix corrects
    it once more.
    """
    _combine_rows(rows[: len(combinations)], rows, combinations)
    basis = rows[: combinations.shape[1]]
    squares, vectors = eigh(gram(basis))
    _combine_rows(basis, basis, (vectors / np.sqrt(squares)) @ vectors.T)
    return basis.clone() if 2 * len(basis) <= len(rows) else basis


def _combine_rows(rows: Tensor, into: Tensor, combinations: np.ndarray) -> None:
    weights = torch.from_numpy(np.ascontiguousarray(combinations.T)).to(rows.device)
    for start in range(0, rows.shape[1], _CHUNK):
        columns = slice(start, start + _CHUNK)
        into[: len(weights), columns] = (weights @ rows[:, columns].double()).to(into.dtype)
