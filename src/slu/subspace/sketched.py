"""A subspace in sketch space: the energies of vectors inside and outside of it, and its construction by Lanczos.

Letters: g a gradient (p,), P the projector onto the true subspace, S the sketch, U_S the basis
of rank r in sketch space. All estimators estimate ‖(I - P) g‖²; the correction depends on the sketch and is
about s / (s - r), because a space of r dimensions captures by chance a share r/s of the sketch of a vector
outside of it.

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

from slu.errors import SettingError
from slu.krylov import Step, Tridiagonal
from slu.sketches import Sketch
from slu.subspace.basis import Convergence, gram, orthonormal_rows, reveal, zero_curvature


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


class SketchedVectors:
    """The loop of the paper's Algorithm 1, one step at a time: sketch each vector, then drop it.

    With the identity sketch this is post-hoc orthogonalized Lanczos.

    Args:
        count: How many steps there are at most.
        sketch: S.

    Cost: (k + 1) s numbers, which the basis will overwrite.
    """

    def __init__(self, count: int, sketch: Sketch) -> None:
        self.count = count
        self.sketch = sketch
        self.rows = torch.zeros(count + 1, sketch.shape[0], dtype=sketch.dtype, device=sketch.device)
        self.tridiagonal = Tridiagonal()
        self._following: Tensor | None = None  # v₊; Lanczos holds it as well, so it costs nothing

    def add(self, step: Step) -> None:
        """One more Lanczos vector; v₊ is kept in case it was the last."""
        self.sketch.accumulate(0, step.vector, self.rows[len(self.tridiagonal)])
        self.tridiagonal.add(step)
        self._following = step.following

    def restore(self, rows: Tensor, tridiagonal: Tridiagonal, following: Tensor) -> None:
        """The vectors that an earlier run had added, and the vector after its last."""
        self.rows[: len(rows)] = rows.to(self.rows.device)
        self.tridiagonal = tridiagonal
        self._following = following

    def subspace(self, keep: float | None = None) -> SketchedSubspace:
        """The orthonormal basis of the added vectors; overwrites the rows.

        Args:
            keep: None for the rank-revealing basis; a share such as 0.9 for the leading part of
                the singular vectors of (S V) W diag(θ), which is what the paper's authors run.

        Cost: s k² operations, in place; with `keep` about five times the memory of the rows.
        """
        if keep is not None and not 0 < keep <= 1:
            raise SettingError(f"keep must be a share in (0, 1], got {keep}")
        steps = len(self.tridiagonal)
        if self._following is not None:
            self.sketch.accumulate(0, self._following, self.rows[steps])
            self._following = None
        # A recurrence that broke down has no v₊ and β = 0; its row stays zero.
        rows = self.rows[: steps + 1]
        combinations, convergence = reveal(gram(rows), self.tridiagonal, rows.dtype)
        if keep is None:
            basis = orthonormal_rows(rows, combinations)
        else:
            basis = _leading_singular_vectors(rows[:steps], self.tridiagonal, int(keep * steps))
        if not len(basis):
            raise zero_curvature()
        eigenvalues = convergence.ritz_values if keep is None else None
        return SketchedSubspace(basis, eigenvalues, self.sketch.correction(len(basis)), convergence)


def _leading_singular_vectors(rows: Tensor, tridiagonal: Tridiagonal, kept: int) -> Tensor:
    if kept < 1:
        raise SettingError(f"keep leaves none of {len(rows)} steps; raise it or the rank")
    values, vectors = tridiagonal.eigh()
    weighted = torch.from_numpy(vectors * values).to(rows.device).T @ rows.double()
    _, _, right = torch.linalg.svd(weighted, full_matrices=False)
    return right[:kept].to(rows.dtype).contiguous()
