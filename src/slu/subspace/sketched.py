"""The sketched Lanczos vectors, and a rank-revealing orthonormal basis of them.

Letters: V_S = S V (s, k), here held as rows B (k + 1, s) with S v₊ as the last; T the tridiagonal
matrix, β its coupling to v₊; U_S = V_S M the orthonormal basis, with M (k, r).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from slu.errors import SettingError
from slu.krylov import Step, Tridiagonal
from slu.sketches import Sketch
from slu.subspace.basis import Convergence, SketchedSubspace, eigh, gram, orthonormal_rows, zero_curvature


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


def tolerance(dtype: torch.dtype) -> float:
    """The singular value, relative to the largest, below which a column adds no direction.

    Vectors rounded at ε carry a new direction of size σ with the accuracy ε/σ, so √ε is where
    the direction and its error are equally small; the Gram matrix in float64 resolves 1e-8.
    """
    return max(torch.finfo(dtype).eps ** 0.5, 1e-6)


def reveal(gram_matrix: np.ndarray, tridiagonal: Tridiagonal, dtype: torch.dtype) -> tuple[np.ndarray, Convergence]:
    """M (k, r) in float64, with columns ordered by Ritz value, and the convergence, from k × k matrices alone.

    With E = V_Sᵀ V_S = W Σ² Wᵀ, the columns with σ above the tolerance give M = W Σ⁻¹, and
    C = U_Sᵀ S G V M = Mᵀ E T M + β Mᵀ (V_Sᵀ S v₊) e_kᵀ M has the Ritz values as eigenvalues,
    because G V = V T + β v₊ e_kᵀ holds whether V is orthogonal or not.

    Args:
        gram_matrix: B Bᵀ, (k + 1, k + 1).
        tridiagonal: T and β.
        dtype: The type the Lanczos vectors were computed in.

    Cost: O(k³), float64.

    Numerics: squaring V_S loses singular values below 1e-8 of the largest; the tolerance lies
    above. C is similar to a symmetric matrix but not symmetric itself, since U_S is orthonormal
    through the sketch only. Its own eigenvalues agree with the true Ritz values to 1e-7 where
    they have converged, those of (C + Cᵀ)/2 only to the sketch's error (1e-2 at s = 1000); so C
    is not symmetrized. Directions whose Ritz value is rounding of the largest are the start
    vector's part outside the range of G, or noise of a recurrence at its end: they are dropped.
    """
    k = len(tridiagonal)
    inner, coupled = gram_matrix[:k, :k], gram_matrix[:k, k]
    squares, vectors = eigh(inner)
    singular = np.sqrt(np.maximum(squares, 0.0))
    kept = singular > tolerance(dtype) * singular[-1]
    combinations = vectors[:, kept] / singular[kept]
    small = combinations.T @ inner @ tridiagonal.dense() @ combinations
    small += tridiagonal.coupling * np.outer(combinations.T @ coupled, combinations[-1])
    ritz, directions = _eigenpairs(small)
    nonzero = np.abs(ritz) > 10 * _rounding(combinations @ directions, dtype) * np.abs(ritz[0])
    # Leading columns of this rotation span the leading Ritz vectors, which are not orthogonal.
    rotation = np.linalg.qr(directions[:, nonzero])[0]
    return combinations @ rotation, Convergence(
        steps=k,
        ghosts=k - int(kept.sum()),
        null=int(kept.sum()) - int(nonzero.sum()),
        orthogonality=_largest_cosine(inner),
        exhausted=tridiagonal.coupling == 0,
        ritz_values=ritz[nonzero],
        residuals=_residuals(gram_matrix, tridiagonal, combinations @ directions[:, nonzero], ritz[nonzero]),
        singular_values=singular[::-1].copy(),
    )


def _eigenpairs(small: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues, largest magnitude first, and unit vectors that span their real invariant spaces.

    A sketch hardly longer than the rank can turn close Ritz values into conjugate pairs. They share
    one real part, and real and imaginary part of the eigenvector span the space of the two.
    """
    values, vectors = np.linalg.eig(small)
    order = np.argsort(-np.abs(values), kind="stable")  # stable: keeps conjugate pairs adjacent
    values, vectors = values[order], vectors[:, order]
    spanning = np.where(np.imag(values) < 0, np.imag(vectors), np.real(vectors))
    return np.real(values), spanning / np.linalg.norm(spanning, axis=0)


def _rounding(combinations: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """(r,) the error of the Ritz value of y = V m by rounding alone, as a share of ‖G‖.

    The vectors' own ε, or the Gram matrix's: ‖m‖ is 1 where V is orthogonal and 1/σ for a direction
    that is nearly a ghost, which goes through the Gram matrix squared.
    """
    squares = np.square(combinations).sum(0)
    return np.maximum(torch.finfo(dtype).eps, np.finfo(np.float64).eps * squares)


def _residuals(
    gram_matrix: np.ndarray, tridiagonal: Tridiagonal, combinations: np.ndarray, ritz: np.ndarray
) -> np.ndarray:
    """‖S (G y - θ y)‖ with y = V m: V (T m - θ m) + β v₊ m_k, measured through the Gram matrix."""
    inside = tridiagonal.dense() @ combinations - combinations * ritz
    coefficients = np.vstack([inside, tridiagonal.coupling * combinations[-1:]])
    squares = np.einsum("ir,ij,jr->r", coefficients, gram_matrix, coefficients)
    return np.sqrt(np.maximum(squares, 0.0))


def _largest_cosine(inner: np.ndarray) -> float:
    lengths = np.sqrt(np.diag(inner))
    cosines = inner / np.outer(lengths, lengths)
    return float(np.abs(cosines - np.eye(len(inner))).max())
