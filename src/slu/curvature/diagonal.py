"""The diagonal of the curvature: exact from per-example gradients, or estimated from products.

Letters: G (p, p) the curvature, a sum over data; a the rows of LᵀJ, with G = Σ a aᵀ; v a vector of
random signs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from slu.curvature.root import RootRows
from slu.errors import NumericalError
from slu.gradients.chunks import Rows
from slu.parameters import Selection
from slu.seeds import stream

_SQUARED = 1 << 18  # numbers squared at a time


def exact_diagonal(factors: RootRows, selection: Selection, progress: Callable[[], None] | None = None) -> Tensor:
    """diag(G) (p,) = Σ a², elementwise, over all points and all columns of L: one pass over the data.

    Args:
        factors: Where the rows come from; after this it knows the number of points.
        selection: The parameters that the rows are of.
        progress: Called after each batch.

    Raises:
        DataError: As `RootRows.feed`.
        NumericalError: A sum overflowed.

    Cost: one pass; t gradients per point (one for the Fishers). p numbers beside the gradients in
    flight, which are squared a megabyte at a time and added in place.

    Numerics: every term is positive, so nothing cancels, and the sum of m additions is off by at most
    m·ε of itself, whatever the terms. m counts the chunks of rows, not the rows,
    and rounding mostly evens out: about √m·ε, 4e-5 for half a million additions in float32. The bad
    case is the same term again and again, which always rounds to the same side: 1 % after a million.
    Either is far below what a diagonal leaves out of G, so the p numbers more that a compensated sum
    would hold are not spent. Squares below 1e-38 vanish in float32, far below any prior precision.
    """
    total = torch.zeros(selection.count, dtype=selection.dtype, device=selection.device)

    def add(rows: Rows) -> None:
        count = rows.shape[0] * rows.shape[1]
        for start, values in rows.pieces:
            place = total[start : start + values.shape[-1]]
            width = max(1, _SQUARED // count)
            for here, part in zip(place.split(width), values.split(width, -1), strict=True):
                here += part.square().sum((0, 1))
            del values  # or it would stay while the next is put together

    factors.feed(add, progress)
    return _finite(total)


def hutchinson_diagonal(
    operator: Any, probes: int, *, seed: int = 0, progress: Callable[[], None] | None = None
) -> Tensor:
    """The mean of v ⊙ G v over random signs v: diag(G) on average, for any operator.

    Args:
        operator: With `shape`, `dtype`, `device` and `@`; one product per probe.
        probes: How many.
        seed: Of the signs.
        progress: Called after each probe.

    Raises:
        NumericalError: A product overflowed.

    Cost: one product, which is one pass over the data, per probe; v, G v and the sum beside it.

    Numerics: unbiased, but entry i has the variance Σ_{j≠i} G_ij² / probes. A curvature has a few large
    eigenvalues, so the off-diagonal of a row is large beside its diagonal: small entries drown in
    it and come out negative as often as positive, though no true one is. See `without_negative`.
    """
    draw = stream(seed, "probes")
    total = torch.zeros(operator.shape[0], dtype=operator.dtype, device=operator.device)
    for _ in range(probes):
        probe = _signs(total, draw)
        total.addcmul_(probe, operator @ probe, value=1 / probes)
        if progress is not None:
            progress()
    return _finite(total)


def _signs(like: Tensor, draw: torch.Generator) -> Tensor:
    """Random signs on the CPU, the same for every device, then moved; as bytes until then."""
    bits = torch.randint(0, 2, like.shape, dtype=torch.int8, generator=draw)
    return bits.mul_(2).sub_(1).to(like.device, like.dtype)


def _clip(diagonal: Tensor) -> Tensor:
    return diagonal.clamp_(min=0)


def _shift(diagonal: Tensor) -> Tensor:
    return diagonal.sub_(diagonal.min().clamp(max=0))


# What becomes of an estimate's negative entries: set to zero, or all entries raised until none is left.
NEGATIVE: dict[str, Callable[[Tensor], Tensor]] = {"clip": _clip, "shift": _shift}


def without_negative(diagonal: Tensor, how: str) -> Tensor:
    """The same diagonal without negative entries, by a name of the table; changed in place.

    "clip" moves only entries that are noise for certain. "shift" raises the whole diagonal by the
    most negative entry, which for one bad entry among millions buries all the small ones.
    """
    return NEGATIVE[how](diagonal)


def _finite(diagonal: Tensor) -> Tensor:
    # The largest magnitude is NaN or infinite if any entry is, and takes no copy.
    if not bool(torch.isfinite(torch.linalg.vector_norm(diagonal, float("inf")))):
        raise NumericalError(
            f"the diagonal of the curvature overflows {str(diagonal.dtype).removeprefix('torch.')}: squares of "
            "gradients do not fit. Look for points with extreme inputs, or fit the model in float64: model.double()",
            partial=diagonal,
        )
    return diagonal
