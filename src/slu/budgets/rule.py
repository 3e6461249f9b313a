"""The rule that turns a budget into a rank and a sketch size.

Letters: B numbers for the artefact, k the rank, s the sketch size, ε the score's relative error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slu.errors import BudgetError

TARGET_ERROR = 0.05
"""ε: sketching noise of a score, relative to itself, that a plan accepts."""

LEAST_ERROR = 0.01
"""ε below which a longer sketch buys nothing worth its memory."""

MOST_PASSES = 200
"""k above which a plan puts further memory into the sketch: every step is a pass over the data."""


@dataclass(frozen=True)
class Shape:
    """k and s. `exact` where a sketch would not be shorter than the parameters."""

    rank: int
    sketch_size: int
    exact: bool


def shape_for(floats: int, parameters: int, data_rank: int | None = None) -> Shape:
    """The rank and sketch size for an artefact of s·k ≤ B numbers.

    The ratio estimator's error is ε = sqrt(2 / (s - k)) of the score itself, so s = k + 2/ε².
    k is the largest for which s·k fits, at most MOST_PASSES and at most the rank n·t the data
    allow (where they are known); memory left over then goes into s, until ε is LEAST_ERROR.
    A sketch as long as the parameters would be no sketch: then it is exact, with k = B/p.

    >>> shape_for(3 * 44_426, 44_426)
    Shape(rank=141, sketch_size=945, exact=False)

    Raises:
        BudgetError: Not even one direction fits.
    """
    room = math.ceil(2 / TARGET_ERROR**2)
    most = min(MOST_PASSES, parameters - 1 if parameters > 1 else 1, data_rank or MOST_PASSES)
    rank = min(most, int((math.sqrt(room**2 + 4 * floats) - room) / 2))
    if rank < 1 and floats < parameters:
        raise BudgetError(
            f"{floats:,} numbers are too few: one direction at {TARGET_ERROR:.0%} error takes {room + 1:,}. "
            f"The smallest budget is {room + 1:,} floats, or '{(room + 1) / parameters:.2g}p' here"
        )
    size = min(floats // max(rank, 1), rank + math.ceil(2 / LEAST_ERROR**2))
    if size >= parameters or rank < 1:
        return Shape(min(most, floats // parameters), parameters, exact=True)
    return Shape(rank, size, exact=False)
