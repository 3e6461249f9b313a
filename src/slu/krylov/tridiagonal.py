"""T, the small matrix that Lanczos leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import eigh_tridiagonal

from slu.krylov.lanczos import Step


@dataclass
class Tridiagonal:
    """α on the diagonal, β beside it, and what reorthogonalization removed; grows step by step.

    The identity G V = V T + β_k v₊ e_kᵀ holds for `dense()`, to rounding.
    """

    alphas: list[float] = field(default_factory=list)
    betas: list[float] = field(default_factory=list)
    removed: list[np.ndarray] = field(default_factory=list)

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Tridiagonal:
        """From all steps of one recurrence."""
        found = cls()
        for step in steps:
            found.add(step)
        return found

    def add(self, step: Step) -> None:
        """One more row and column; the step's vectors are not looked at."""
        self.alphas.append(step.alpha)
        self.betas.append(step.beta)
        self.removed.append(step.removed)

    def __len__(self) -> int:
        """k."""
        return len(self.alphas)

    @property
    def coupling(self) -> float:
        """β_k, to the vector after the last."""
        return self.betas[-1]

    def dense(self) -> np.ndarray:
        """(k, k) in float64; symmetric up to what was removed."""
        inner = self.betas[:-1]
        result = np.diag(self.alphas) + np.diag(inner, 1) + np.diag(inner, -1)
        for place, removed in enumerate(self.removed):
            result[: len(removed), place] += removed
        return result

    def eigh(self) -> tuple[np.ndarray, np.ndarray]:
        """Values θ, largest first, and W with T = W diag(θ) Wᵀ, of α and β alone; O(k²).

        They are Ritz values of runs in which nothing beyond rounding was removed: low-memory and
        high-memory ones, not preconditioned ones that have met ghosts.
        """
        values, vectors = eigh_tridiagonal(np.array(self.alphas), np.array(self.betas[:-1]))
        return values[::-1].copy(), vectors[:, ::-1].copy()
