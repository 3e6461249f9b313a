"""A rank-revealing orthonormal basis of the sketched Lanczos vectors.

Letters: V_S = S V (s, k), here held as rows B (k + 1, s) with S v₊ as the last; T the tridiagonal
matrix, β its coupling to v₊; U_S = V_S M the orthonormal basis, with M (k, r).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slu.errors import NumericalError
from slu.krylov import Tridiagonal

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


def tolerance(dtype: torch.dtype) -> float:
    """The singular value, relative to the largest, below which a column adds no direction.

    Vectors rounded at ε carry a new direction of size σ with the accuracy ε/σ, so √ε is where
    the direction and its error are equally small; the Gram matrix in float64 resolves 1e-8.
    """
    return max(torch.finfo(dtype).eps ** 0.5, 1e-6)


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
