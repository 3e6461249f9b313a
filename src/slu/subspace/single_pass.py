"""Leading eigenvectors of a matrix that is seen once, as a sum of outer products.

Letters: G (p, p) = Σ a aᵀ, of which only the rows a are seen, once; Ω (r₁, p) and Ψ (r₂, p) random test matrices;
Y = Ω G (r₁, p) for the range of G and W = Ψ G (r₂, p) for what G does there, all vectors of length p
held as rows; Q (r, p) orthonormal rows that span Y; U (k, p) the eigenvectors.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from slu.errors import NumericalError, SettingError
from slu.sketches import Sketch
from slu.subspace.basis import eigh, orthonormal_rows, zero_curvature

_CHUNK = 1 << 14  # columns taken to float64 at a time


class SinglePass:
    """A randomized eigendecomposition in one pass, after Tropp, Yurtsever, Udell and Cevher (2017).

    Y gives the directions that G reaches, W how it acts on them: G ≈ Qᵀ C Q, with C the least-squares solution
    of (Ψ Qᵀ) C = W Qᵀ, made symmetric. Their variant for symmetric matrices is (Qᵀ X + Xᵀ Q) / 2, with X (r, p)
    the solution of (Ψ Qᵀ) X = W, and needs r more vectors to orthonormalize Q and X together. Here it is
    restricted to the range of Q: Q (Qᵀ X + Xᵀ Q) Qᵀ / 2 is the symmetric part of X Qᵀ = C, and nothing of
    length p is needed beside Y and W. On spectra that fall like 1/i and 1/i² (p = 1000, k = 3 and 10,
    15 draws of Gaussian Ω and Ψ with 2 k + 1 and 4 k + 3 rows) the error is 1.2 to 1.4 times that of the best
    approximation of rank k, and 1.1 to 1.3 times with the r vectors more.

    Args:
        range_sketch: Ω. The answer is exact where G has a rank of at most r₁; else r₁ should be about
            twice the rank that is wanted.
        corange_sketch: Ψ, drawn independently of Ω, with at least as many rows: about twice as many.

    Cost: (r₁ + r₂) p numbers, which the basis will overwrite; a row takes 2 (r₁ + r₂) p operations and
    two sketches. The test matrices are held as the sketches hold them, never as numbers.

    Numerics: sums are kept in the sketches' dtype, as those of any product with G. What is below rounding
    of the largest eigenvalue is lost in them.
    """

    def __init__(self, range_sketch: Sketch, corange_sketch: Sketch) -> None:
        (r1, p), (r2, other) = range_sketch.shape, corange_sketch.shape
        if p != other or r2 < r1:
            raise SettingError(
                f"the two sketches must be of vectors of one length, and the second at least as long as the first; "
                f"got the shapes {(r1, p)} and {(r2, other)}"
            )
        self._sketches = range_sketch, corange_sketch
        self._products = tuple(
            torch.zeros(sketch.shape, dtype=sketch.dtype, device=sketch.device) for sketch in self._sketches
        )

    def add(self, pieces: Iterable[tuple[int, Tensor]]) -> None:
        """Add Σ a aᵀ over some rows a, given in pieces of their coordinates.

        Args:
            pieces: (first coordinate, (..., m) numbers), all of the same rows, until every coordinate came
                once. They are held until the last has come: the sketch of a whole row is needed
                before the first piece can be used.
        """
        held = [(start, values.reshape(-1, values.shape[-1])) for start, values in pieces]
        for sketch, product in zip(self._sketches, self._products, strict=True):
            seen = product.new_zeros(len(held[0][1]), len(product))
            for start, values in held:
                sketch.accumulate(start, values, seen)
            for start, values in held:
                product[:, start : start + values.shape[-1]].addmm_(seen.T, values.to(product.dtype))

    def leading(self, rank: int) -> tuple[np.ndarray, Tensor]:
        """The largest eigenvalues (k,), in float64, and their eigenvectors U (k, p); uses up what was added.

        There are fewer than `rank` where G has fewer above rounding; none is negative: C has negative ones only
        through the noise of the sketches, G has none.

        Raises:
            NumericalError: What was added holds NaN or infinity, or is zero, or is below the noise of
                the sketches.

        Cost: about 4 r₁² p operations, in place: two vectors of length p at a time, then the k that
        are copied to free the rest, when W is freed already.

        Numerics: the small matrices are float64 on the CPU. Directions of Y below rounding of its largest
        are noise and left out, and so are eigenvalues below rounding of the largest.
        """
        if not self._products:
            raise SettingError("an earlier call has used up what was added; add it again, to a new SinglePass")
        (_, corange), (reached, acted) = self._sketches, self._products
        self._products = ()
        _check_finite(reached)
        _check_finite(acted)
        basis = orthonormalized(reached)
        if not len(basis):
            raise zero_curvature()
        tested = torch.zeros(len(basis), len(acted), dtype=torch.float64, device=basis.device)
        corange.accumulate(0, basis, tested)
        core = np.linalg.lstsq(tested.T.cpu().numpy(), _inner(acted, basis), rcond=None)[0]
        del acted  # before the eigenvectors are copied
        values, vectors = eigh((core + core.T) / 2)
        values, vectors = values[::-1], vectors[:, ::-1]
        kept = min(rank, int((values > 10 * torch.finfo(basis.dtype).eps * abs(values).max()).sum()))
        if kept < 1:
            raise NumericalError(
                f"the test matrices are too short for this curvature: of {len(values)} eigenvalues none came out "
                f"positive, the largest is {values[0]:.3g}. Take more rows, or another seed"
            )
        eigenvectors = orthonormal_rows(basis, vectors[:, :kept].copy())
        whole = eigenvectors.untyped_storage().nbytes() == eigenvectors.nbytes
        return values[:kept].copy(), eigenvectors if whole else eigenvectors.clone()


def orthonormalized(rows: Tensor) -> Tensor:
    """Orthonormal rows that span the same space, as the leading rows of the same memory.

    Gram-Schmidt, each time with the longest row that is left, until what is left is rounding of the
    longest row of all.

    Cost: about 4 r² p operations for r rows; one vector of length p beside them.

    Numerics: a row is orthogonalized as its predecessors come and twice more when its turn comes,
    so that the rows are orthonormal to rounding however dependent they were. The Gram matrix
    would lose whatever is below 1e-8 of the longest; this loses what is below 10 ε.
    """
    size = torch.linalg.vector_norm(rows, float("inf"))
    if not float(size) > 0:
        return rows[:0]
    rows /= size  # so that squares neither overflow nor vanish
    floor = 10 * torch.finfo(rows.dtype).eps * float(torch.linalg.vector_norm(rows, dim=1).max())
    for place in range(len(rows)):
        longest = place + int(torch.linalg.vector_norm(rows[place:], dim=1).argmax())
        if longest != place:
            saved = rows[place].clone()
            rows[place] = rows[longest]
            rows[longest] = saved
        row, before, after = rows[place], rows[:place], rows[place + 1 :]
        for _ in range(2):
            row.addmv_(before.T, before @ row, alpha=-1)
        length = torch.linalg.vector_norm(row)
        if not float(length) > floor:
            return before
        row /= length
        after.addr_(after @ row, row, alpha=-1)
    return rows


def _inner(first: Tensor, second: Tensor) -> np.ndarray:
    """The inner products of two sets of rows, in float64."""
    total = torch.zeros(len(first), len(second), dtype=torch.float64, device=first.device)
    for one, other in zip(first.split(_CHUNK, 1), second.split(_CHUNK, 1), strict=True):
        total += one.double() @ other.double().T
    return total.cpu().numpy()


def _check_finite(rows: Tensor) -> None:
    # LAPACK may hang or return garbage on these. The largest magnitude takes no copy of the rows.
    if not bool(torch.isfinite(torch.linalg.vector_norm(rows, float("inf")))):
        raise NumericalError(
            f"products with the curvature hold NaN or overflow {str(rows.dtype).removeprefix('torch.')}; look for "
            "points with extreme inputs, or fit the model in float64: model.double()"
        )
