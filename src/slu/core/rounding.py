"""How far the score of an input moves with the batch it comes in, and comparisons that do not depend on it.

Letters: c the scores of m calibration points, s that of a query, R the rounding of a reading: no score in a batch
differs from that of the same input alone by more, in the unit |s|, or f where |s| is less. An input that ties with a
calibration point has s ≤ c + 2 R. A p-value counts the c with s ≤ e, where the *edge* e is c + 4 R, so that near-ties
are ties. A score within 2 R of an edge could be on the other side in another batch; such an input is scored again
alone, and that score counts. Every other score is on the same side of all edges alone: p-values do not depend on the
batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

ALONE = 16
"""Calibration points that are also scored alone, to measure R."""

TIES, NEAR = 4.0, 2.0
"""In units of R: how far above a calibration score ties with it, and how far from an edge an input is scored alone."""

_MARGIN = 4.0  # of R over the largest difference of ALONE points; that of 400 was up to 6 times, NEAR · 4 covers 8
_LEAST = 16  # times the machine epsilon, where no difference was seen


def widened(scores: Tensor) -> Tensor:
    """In float64 on the CPU, where scores are compared."""
    return scores.detach().double().cpu().contiguous()


def least_rounding(scores: Iterable[Tensor]) -> float:
    """R where none was measured, or nothing differed: a few times the coarser of float32 and the scores' type."""
    double = all(each.dtype == torch.float64 for each in scores)
    return _LEAST * torch.finfo(torch.float64 if double else torch.float32).eps


def smallest_unit(scores: Tensor, positive: bool) -> Tensor:
    """f, from (m, ...) calibration scores: the smallest positive one, or the mean size of a reading with signs."""
    if not positive:
        return scores.abs().mean(0)
    above = scores.masked_fill(~(scores > 0), torch.inf).amin(0)
    return above.masked_fill(above.isinf(), 1.0)


def measured_rounding(scores: Tensor, alone: Tensor, positive: bool, least: float) -> Tensor:
    """R (...) of (m, ...) calibration scores, of which the first were also scored alone; at least so much."""
    unit = smallest_unit(scores, positive)
    if not len(alone):
        return torch.full_like(unit, least)
    apart = (scores[: len(alone)] - alone).abs() / torch.maximum(alone.abs(), unit)
    return _MARGIN * apart.nan_to_num(nan=0.0, posinf=torch.finfo(torch.float32).max).amax(0).clamp(min=least)


@dataclass(frozen=True, eq=False)
class Edges:
    """The scores at which p-values step.

    Attributes:
        values: (m,) e, sorted.
        lower, upper: (m,) sorted ends of the intervals of width ± 2 R around them.
    """

    values: Tensor
    lower: Tensor
    upper: Tensor

    @classmethod
    def of(cls, scores: Tensor, positive: bool, rounding: float) -> Edges:
        """From (m,) calibration scores and R."""
        each = rounding * torch.maximum(scores.abs(), smallest_unit(scores, positive))
        steps = (TIES, TIES - NEAR, TIES + NEAR)
        return cls(*((scores + step * each).sort().values for step in steps))

    def below(self, scores: Tensor) -> Tensor:
        """How many edges are below each of the scores, float64; NaN for NaN."""
        wide = widened(scores)
        below = torch.searchsorted(self.values, wide).double()
        return below.masked_fill(wide.isnan(), torch.nan).to(scores.device)

    def near(self, scores: Tensor) -> Tensor:
        """Whether each of the scores is so close to an edge that its batch could decide."""
        wide = widened(scores)
        inside = torch.searchsorted(self.lower, wide, right=True) > torch.searchsorted(self.upper, wide)
        return inside.to(scores.device)

    def deciding(self, rate: float) -> Edges:
        """The one edge above which p ≤ rate; ±infinity, which nothing is near, where that holds for all or for none."""
        count = len(self.values)
        # The same division as of p-values, so that flags agree with them in spite of rounding.
        pvalues = (1 + torch.arange(count + 1, dtype=torch.float64)) / (1 + count)
        reached = int((pvalues <= rate).sum())
        if 0 < reached <= count:
            return Edges(*(each[count - reached, None] for each in (self.values, self.lower, self.upper)))
        everywhere = self.values.new_tensor([-math.inf if reached else math.inf])
        return Edges(everywhere, everywhere[:0], everywhere[:0])

    @property
    def distinct(self) -> int:
        """How many of the calibration scores do not tie with the next higher one."""
        return 1 + int((self.values.diff() > self.values[1:] - self.lower[1:]).sum())
