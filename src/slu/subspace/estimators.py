"""From what a sketch shows of a vector to how much of it lies outside a subspace.

Letters: g a gradient (p,), P the projector onto the true subspace, S the sketch, U_S the basis
of rank r in sketch space. All estimate ‖(I - P) g‖²; the correction is the sketch's own, about
s / (s - r), because a space of r dimensions holds by chance a share r/s of whatever is sketched
from outside of it.

With a ridge, directions that the data pin down weakly stay open in part: direction j with the eigenvalue
λ_j by v_j = α / (λ_j + α), so that gᵀ (I - P) g becomes gᵀ α (G + α I)⁻¹ g, for G cut to the subspace. Its
part inside, Σ v_j (u_jᵀ S g)², is the energy "reopened".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Energies:
    """Squared lengths, all of one shape.

    Attributes:
        exact: ‖g‖², from the gradient itself.
        captured: ‖U_Sᵀ S g‖², inside the basis.
        residual: ‖(I - U_S U_Sᵀ) S g‖², outside of it.
        reopened: Of the captured what a ridge leaves open; 0 without one.
    """

    exact: Tensor
    captured: Tensor
    residual: Tensor
    reopened: Tensor

    def sum(self) -> Energies:
        """Summed over the last dimension: the energies of a trace over outputs."""
        return Energies(*(each.sum(-1) for each in (self.exact, self.captured, self.residual, self.reopened)))


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
    del correction  # the paper knows none
    return energies.exact - energies.captured + energies.reopened


ESTIMATORS: dict[str, Callable[[Energies, float], Tensor]] = {
    "ratio": ratio,
    "residual": residual,
    "difference": difference,
}
