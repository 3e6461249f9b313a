"""Lanczos' recurrence: low-memory, high-memory and preconditioned; and the small matrix T that it leaves.

Letters: G (p, p) symmetric, known by products only; V = [v₁ … v_k] the Krylov basis, T the
tridiagonal matrix of α on and β beside the diagonal; G V = V T + β_k v₊ e_kᵀ. Where vectors are
kept orthogonal to earlier ones, what was taken out belongs to T as well.

All three are generators that yield a step as soon as it is known: while a consumer sketches v_j and
drops it, only the few vectors of the recurrence are in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from slu.errors import NumericalError, SettingError
from slu.seeds import stream


class Operator(Protocol):
    """Anything square that multiplies a vector; a plain tensor is one."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    def __matmul__(self, vector: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class State:
    """All that the recurrence needs to continue: what a checkpoint holds.

    Attributes:
        count: Steps done, j.
        vector: v_{j+1}.
        previous: v_j; None before the first step.
        beta: β_j.
        scale: The largest |α| + β so far, which a breakdown is judged by.
        held: (hold, p), the first vectors, to which later ones are kept orthogonal.
    """

    count: int
    vector: Tensor
    previous: Tensor | None
    beta: float
    scale: float
    held: Tensor


@dataclass(frozen=True)
class Step:
    """Step j of the recurrence.

    Attributes:
        vector: v_j, a unit vector of length p.
        alpha: α_j = v_jᵀ G v_j.
        beta: β_j = ‖G v_j - α_j v_j - β_{j-1} v_{j-1}‖, the coupling to the next vector; 0 where
            the Krylov space is exhausted, which ends the iteration.
        following: v_{j+1}, or None where β_j is 0.
        removed: What reorthogonalization took out of G v_j besides, as coefficients on the first
            vectors; empty without it, rounding where everything is held.
        state: From which the recurrence can continue after this step; None where it has ended.
    """

    vector: Tensor
    alpha: float
    beta: float
    following: Tensor | None
    removed: np.ndarray
    state: State | None = None


@dataclass
class Tridiagonal:
    """T: α on the diagonal, β beside it, and what reorthogonalization removed; grows step by step.

    The identity G V = V T + β_k v₊ e_kᵀ holds for `dense()`, to rounding.
    """

    alphas: list[float] = field(default_factory=list)
    betas: list[float] = field(default_factory=list)
    removed: list[np.ndarray] = field(default_factory=list)

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Tridiagonal:
        """From all steps of one recurrence."""
        tridiagonal = cls()
        for step in steps:
            tridiagonal.add(step)
        return tridiagonal

    def add(self, step: Step) -> None:
        """One more row and column; the step's vectors are not used."""
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


def start_vector(operator: Operator, seed: int) -> Tensor:
    """A uniformly random unit vector, the same for a seed on every device."""
    drawn = torch.randn(operator.shape[0], generator=stream(seed, "start"), dtype=torch.float32)
    drawn = drawn.to(operator.device, operator.dtype)
    return drawn.div_(drawn.norm())


def low_memory(operator: Operator, start: Tensor, steps: int) -> Iterator[Step]:
    """The three-term recurrence as it stands.

    Cost: one product per step; three vectors of length p while the product runs (v_{j-1}, v_j
    and its result), besides what the product itself needs.

    Numerics: orthogonality is lost as Ritz values converge, and converged directions come back
    as *ghosts*. The identity G V = V T + β v₊ eᵀ still holds to rounding (Paige), so the span is
    sound; but V must be orthonormalized in a rank-revealing way before it is used.
    """
    return resumed(operator, _beginning(start, hold=0), steps)


def high_memory(operator: Operator, start: Tensor, steps: int) -> Iterator[Step]:
    """Full reorthogonalization against every earlier vector.

    Cost: one product and 8 p j floating-point operations in step j; k + 3 vectors of length p.

    Numerics: two rounds of Gram-Schmidt ("twice is enough") keep V orthonormal to rounding.
    """
    return resumed(operator, _beginning(start, hold=steps), steps)


def preconditioned(operator: Operator, start: Tensor, steps: int, high_memory_steps: int) -> Iterator[Step]:
    """k₀ high-memory steps, then low-memory steps on the operator deflated by their span.

    The later steps continue the recurrence from v₊ and are kept orthogonal to the first k₀
    vectors V₀, which is Lanczos on (I - V₀V₀ᵀ) G (I - V₀V₀ᵀ) started at v₊. The leading
    directions, the first to come back as ghosts, thereby stay out. Against a fresh random start
    (the paper's) this finds as many directions and has one noise direction less; against
    subtracting U₀ Λ₀ U₀ᵀ it finds one to three more (float32, spectra over 3 to 9 decades).

    Cost: as low_memory, and k₀ vectors of length p more.
    """
    if not 0 <= high_memory_steps <= steps:
        raise SettingError(f"precondition must lie between 0 and the rank {steps}, got {high_memory_steps}")
    return resumed(operator, _beginning(start, hold=high_memory_steps), steps)


def _beginning(start: Tensor, hold: int) -> State:
    return State(0, start, None, 0.0, 0.0, start.new_empty(hold, len(start)))


def resumed(operator: Operator, state: State, steps: int) -> Iterator[Step]:
    """The recurrence from any state up to `steps` in all, to the bit as if never interrupted.

    Every new vector is kept orthogonal to the held ones.
    """
    vector, previous, held, beta, scale = state.vector, state.previous, state.held, state.beta, state.scale
    done, tolerance = state.count, breakdown_tolerance(vector.dtype)
    del state  # it would keep its vectors alive as long as the generator
    for count in range(done, steps):
        if count < len(held):
            held[count] = vector
        following = operator @ vector
        if previous is not None:
            following.sub_(previous, alpha=beta)
            previous = None  # freed before the next product needs its memory
        alpha = float(torch.dot(following, vector))
        following.sub_(vector, alpha=alpha)
        removed = _orthogonalize(following, held[: count + 1])
        scale = max(scale, abs(alpha) + beta)
        beta = float(following.norm())
        if not math.isfinite(alpha + beta):
            raise NumericalError(
                f"Lanczos step {count + 1} gave α = {alpha}, β = {beta}: the products with the matrix are not "
                "finite. Scale the loss down, or use float32 or float64 weights"
            )
        if beta <= tolerance * scale:
            yield Step(vector, alpha, 0.0, None, removed)
            return
        following.div_(beta)
        yield Step(vector, alpha, beta, following, removed, State(count + 1, following, vector, beta, scale, held))
        vector, previous = following, vector


def _orthogonalize(vector: Tensor, held: Tensor) -> np.ndarray:
    """Two rounds of Gram-Schmidt against the rows of `held`, in place; what they took out."""
    removed = np.zeros(len(held))
    if len(held):
        for _ in range(2):
            coefficients = held @ vector
            vector.sub_(held.T @ coefficients)
            removed += coefficients.double().cpu().numpy()
    return removed


def breakdown_tolerance(dtype: torch.dtype) -> float:
    """Below this share of ‖G‖ a remainder is made of rounding errors alone."""
    return 10 * torch.finfo(dtype).eps
