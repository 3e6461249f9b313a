"""Sketched Lanczos: a stream of Lanczos vectors in, an orthonormal basis in sketch space out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slu.errors import NumericalError, SettingError
from slu.krylov import Step, Tridiagonal
from slu.sketches import Sketch
from slu.subspace.basis import Revealed, gram, orthonormal_rows, reveal
from slu.subspace.estimators import Energies


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """How a subspace came about and how far to trust it.

    Attributes:
        steps: Lanczos steps taken.
        effective_rank: r, the directions that survived; this is what the score projects out.
        ghosts: Steps that found nothing new because orthogonality was lost.
        null: Directions dropped because the curvature does not move them beyond rounding.
        orthogonality: The largest cosine between two Lanczos vectors, through the sketch: about
            1/√s where they are orthogonal, 1 where one came back.
        exhausted: Whether the Krylov space ended before the steps asked for.
        ritz_values: (r,) approximate eigenvalues of the curvature, largest magnitude first; small
            ones may come out slightly negative through a short sketch. With `keep` they and the
            residuals are still those of the rank-revealing basis.
        residuals: (r,) norms ‖G y - θ y‖: small against θ where a direction has converged.
        singular_values: (steps,) of the sketched Lanczos vectors.
        points, passes, seconds: Of the fit: n, passes over the data, time.
        captured: Of the curvature's trace the share that lies in the subspace; NaN where it is not
            known, as after Lanczos, which in turn knows the residuals that a single pass does not.
    """

    steps: int
    effective_rank: int
    ghosts: int
    null: int
    orthogonality: float
    exhausted: bool
    ritz_values: np.ndarray
    residuals: np.ndarray
    singular_values: np.ndarray
    points: int = 0
    passes: int = 0
    seconds: float = 0.0
    captured: float = float("nan")

    def plain(self) -> dict[str, Any]:
        """As plain numbers and lists, for a header, which holds finite numbers only: None for the others."""
        return {key: _plain(value) for key, value in vars(self).items()}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Diagnostics:
        """What `plain` gave; None comes back as NaN."""
        fields: dict[str, Any] = {}
        for key, value in plain.items():
            fields[key] = np.array(value, dtype=np.float64) if isinstance(value, list) else value
            if value is None:
                fields[key] = float("nan")
        return cls(**fields)

    def __str__(self) -> str:
        lines = self._of_one_pass() if math.isfinite(self.captured) else self._of_lanczos()
        passes = f"{self.passes} pass" + ("es" if self.passes != 1 else "")
        lines["data"] = f"{self.points} points, {passes}, {self.seconds:.1f} s"
        return "\n".join(f"{name:<16}{text}" for name, text in lines.items())

    def _of_lanczos(self) -> dict[str, str]:
        converged = int((self.residuals <= 0.01 * np.abs(self.ritz_values)).sum())
        ended = ", the Krylov space was exhausted" if self.exhausted else ""
        return {
            "effective rank": f"{self.effective_rank} of {self.steps} steps{ended}",
            "lost": f"{self.ghosts} ghosts, {self.null} directions without curvature",
            "orthogonality": f"largest cosine {self.orthogonality:.2g} between Lanczos vectors",
            "Ritz values": f"{self.ritz_values[0]:.4g} down to {self.ritz_values[-1]:.4g}, {converged} within 1 %",
        }

    def _of_one_pass(self) -> dict[str, str]:
        return {
            "effective rank": f"{self.effective_rank} of {self.steps}",
            "captured": f"{self.captured:.1%} of the curvature's trace",
            "Ritz values": f"{self.ritz_values[0]:.4g} down to {self.ritz_values[-1]:.4g}",
        }


@dataclass(frozen=True)
class SketchedSubspace:
    """U_S, the orthonormal basis of r directions in sketch space.

    Attributes:
        basis: U_Sᵀ (r, s), rows orthonormal and ordered by Ritz value.
        correction: The sketch's factor for residuals outside r of its s dimensions.
        diagnostics: Where it came from.
    """

    basis: Tensor
    correction: float
    diagnostics: Diagnostics

    def to(self, device: torch.device) -> SketchedSubspace:
        """The same subspace on a device."""
        return replace(self, basis=self.basis.to(device))

    def openness(self, ridge: float) -> Tensor:
        """v (r,) = α / (λ + α), how far a ridge leaves each direction open, with α = ridge Σ |λ|.

        Numerics: α follows the curvature, so that neither the loss's unit nor the number of points matters.
        """
        values = np.abs(self.diagnostics.ritz_values)
        if ridge and len(values) != len(self.basis):
            raise SettingError(
                "a ridge needs an eigenvalue for every direction, which keep= does not have; leave one out"
            )
        alpha = ridge * float(values.sum())
        open_share = alpha / (values + alpha) if ridge else np.zeros(len(self.basis))
        return torch.from_numpy(open_share).to(self.basis.device, self.basis.dtype)

    def correction_with(self, ridge: float) -> float:
        """The factor for residuals beside what a ridge reopens.

        By chance each direction holds the share (1 - 1/correction)/r of what lies outside. Reopened by v_j it
        counts there as well, so that much of it must not be added a second time; with all of it open, none.
        """
        return self.correction - (self.correction - 1) * float(self.openness(ridge).mean())

    def energies(self, exact: Tensor, sketched: Tensor, ridge: float = 0.0) -> Energies:
        """Split sketched vectors (..., s) into the parts inside and outside the basis.

        Args:
            exact: (...) squared lengths of the vectors before sketching.
            sketched: (..., s).
            ridge: How far weak directions stay open, as of `openness`.

        Cost: 4 s r operations a vector.

        Numerics: the outside part is formed as a vector, not as a difference of squares, so a
        nearly captured vector keeps its relative accuracy and no energy is negative.
        """
        inside = sketched @ self.basis.T
        outside = sketched - inside @ self.basis
        squares = inside.square()
        return Energies(exact, squares.sum(-1), outside.square().sum(-1), squares @ self.openness(ridge))


class SketchedVectors:
    """The loop of the paper's Algorithm 1, one step at a time: sketch each vector, then let it go.

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
        """What an earlier run had added, and the vector after its last."""
        self.rows[: len(rows)] = rows.to(self.rows.device)
        self.tridiagonal = tridiagonal
        self._following = following

    def subspace(self, keep: float | None = None) -> SketchedSubspace:
        """The orthonormal basis of what was added; uses up the rows.

        Args:
            keep: None for the rank-revealing basis; a share such as 0.9 for the leading part of
                the singular vectors of (S V) W diag(θ), which is what the paper's authors run.

        Cost: s k² operations, in place; with `keep` about five times the memory of the rows.
        """
        if keep is not None and not 0 < keep <= 1:
            raise SettingError(f"keep must be a share in (0, 1], got {keep}")
        found = len(self.tridiagonal)
        if self._following is not None:
            self.sketch.accumulate(0, self._following, self.rows[found])
            self._following = None
        # A recurrence that broke down has no v₊, and its β is 0: the zero row stands for it.
        rows = self.rows[: found + 1]
        revealed = reveal(gram(rows), self.tridiagonal, rows.dtype)
        if keep is None:
            basis = orthonormal_rows(rows, revealed.combinations)
        else:
            basis = _leading_singular_vectors(rows[:found], self.tridiagonal, int(keep * found))
        diagnostics = _diagnostics(revealed, found, self.tridiagonal.coupling == 0, basis)
        return SketchedSubspace(basis, self.sketch.correction(len(basis)), diagnostics)


def sketched_subspace(
    steps: Iterable[Step], count: int, sketch: Sketch, *, keep: float | None = None
) -> SketchedSubspace:
    """The paper's Algorithm 1 as a whole: sketch each Lanczos vector as it comes, then orthonormalize.

    With the identity sketch this is post-hoc orthogonalized Lanczos. Arguments as in
    `SketchedVectors`.
    """
    vectors = SketchedVectors(count, sketch)
    for step in steps:
        vectors.add(step)
    return vectors.subspace(keep)


def _leading_singular_vectors(rows: Tensor, tridiagonal: Tridiagonal, kept: int) -> Tensor:
    if kept < 1:
        raise SettingError(f"keep leaves none of {len(rows)} steps; raise it or the rank")
    values, vectors = tridiagonal.eigh()
    weighted = torch.from_numpy(vectors * values).to(rows.device).T @ rows.double()
    _, _, right = torch.linalg.svd(weighted, full_matrices=False)
    return right[:kept].to(rows.dtype).contiguous()


def _diagnostics(revealed: Revealed, steps: int, exhausted: bool, basis: Tensor) -> Diagnostics:
    if not len(basis):
        raise NumericalError(
            "the curvature is zero in every direction tried: the outputs do not depend on the selected parameters, "
            "or the network is so sure of every point that nothing is left to differentiate"
        )
    return Diagnostics(
        steps=steps,
        effective_rank=len(basis),
        ghosts=revealed.ghosts,
        null=revealed.null,
        orthogonality=revealed.orthogonality,
        exhausted=exhausted,
        ritz_values=revealed.ritz_values,
        residuals=revealed.residuals,
        singular_values=revealed.singular_values,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
