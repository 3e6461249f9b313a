"""The rule that turns a budget into a rank and a sketch size.

Letters: B numbers for the artefact, p parameters, k the rank, s the sketch size, ε the score's
relative error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slu.budgets.amount import Amount
from slu.errors import BudgetError

TARGET_ERROR = 0.05
"""ε: sketching noise of a score, relative to itself, that a plan accepts."""

LEAST_ERROR = 0.01
"""ε below which a longer sketch buys nothing worth its memory."""

MOST_PASSES = 200
"""k above which a plan puts further memory into the sketch: with Lanczos every step is a pass over the data."""

# s - k at these errors.
_SPARE = math.ceil(2 / TARGET_ERROR**2)
_MOST_SPARE = math.ceil(2 / LEAST_ERROR**2)


@dataclass(frozen=True)
class Shape:
    """k and s. `exact` where a sketch would not be shorter than the parameters: then s = p."""

    rank: int
    sketch_size: int
    exact: bool

    @property
    def floats(self) -> int:
        """s·k, the numbers of the artefact."""
        return self.rank * self.sketch_size

    @property
    def error(self) -> float:
        """ε, the sketch's noise in a score, relative to the score."""
        return 0.0 if self.exact else math.sqrt(2 / max(self.sketch_size - self.rank, 1))


@dataclass(frozen=True)
class Fixed:
    """What the user decided: the budget sets the rest. `exact` rules a sketch in (False) or out (True)."""

    rank: int | None = None
    sketch_size: int | None = None
    exact: bool | None = None


def shape_for(amount: Amount | int, parameters: int, fixed: Fixed | None = None, data_rank: int | None = None) -> Shape:
    """The rank and sketch size for an artefact of s·k ≤ B numbers.

    With the ratio estimator a score's error is ε = sqrt(2 / (s - k)) of the score itself, so a target error needs
    s = k + 2/ε², whatever t: the ratio of sums over outputs is no noisier than one output's. From this:

    1. k is the largest for which (k + 2/ε²)·k fits, with ε = TARGET_ERROR;
    2. but at most MOST_PASSES, at most p - 1, and at most the rank n·t of the data where that is known;
    3. memory left over goes into s, until ε is LEAST_ERROR; the rest stays unused;
    4. where s would reach p, nothing is sketched (exact): s = p, k = B/p.

    What the user fixed is kept as it is, or refused. A given rank may be above MOST_PASSES.

    >>> shape_for(3 * 44_426, 44_426)
    Shape(rank=141, sketch_size=945, exact=False)
    >>> shape_for(3 * 44_426, 44_426, Fixed(rank=100))
    Shape(rank=100, sketch_size=1332, exact=False)
    >>> shape_for(3 * 44_426, 44_426, Fixed(sketch_size=2000))
    Shape(rank=66, sketch_size=2000, exact=False)

    Raises:
        BudgetError: Nothing fits, or not what the user fixed; the message names what would.
    """
    amount = amount if isinstance(amount, Amount) else Amount(amount, f"{amount:,} floats")
    fixed = fixed or Fixed()
    most = min(MOST_PASSES, max(parameters - 1, 1), MOST_PASSES if data_rank is None else max(data_rank, 1))
    size = parameters if fixed.exact else fixed.sketch_size
    if size is not None:
        return _of_size(amount, parameters, size, fixed, most)
    if fixed.rank is not None:
        return _of_rank(amount, parameters, fixed.rank, fixed.exact)
    rank = min(most, _largest_rank(amount.floats))
    whole = min(most, amount.floats // parameters)
    if whole >= max(rank, 1) and fixed.exact is None and (rank < most or parameters <= rank + _MOST_SPARE):
        return Shape(whole, parameters, exact=True)
    if rank < 1:
        raise BudgetError(
            f"the budget {amount.text!r} is {amount.held}, too few for one direction at "
            f"{TARGET_ERROR:.0%} error; the smallest that fits is {smallest(parameters, fixed, amount.reserved)}"
        )
    return Shape(rank, _longest(amount.floats, rank, parameters), exact=False)


def smallest(parameters: int, fixed: Fixed, reserved: int = 0) -> str:
    """The smallest budget that holds what the user fixed and `reserved` numbers beside it, for a message.

    >>> smallest(44_426, Fixed(), reserved=44_426)
    "45,227 floats ('1.02p')"
    """
    rank = fixed.rank or 1
    size = parameters if fixed.exact else fixed.sketch_size
    if size is None:
        size = rank + _SPARE if fixed.exact is False and fixed.rank is None else min(rank + _SPARE, parameters)
    return _named(rank * size + reserved, parameters)


def _largest_rank(floats: int) -> int:
    """The largest k with k (k + spare) ≤ B."""
    return (math.isqrt(_SPARE**2 + 4 * floats) - _SPARE) // 2


def _longest(floats: int, rank: int, parameters: int) -> int:
    return min(floats // rank, rank + _MOST_SPARE, parameters)


def _of_rank(amount: Amount, parameters: int, rank: int, exact: bool | None) -> Shape:
    if rank < 1:
        raise BudgetError(f"the rank must be at least 1, got {rank}; leave it out and the budget sets it")
    size = _longest(amount.floats, rank, parameters)
    if size == parameters and exact is None:
        return Shape(rank, parameters, exact=True)
    needed = min(rank + _SPARE, parameters)
    if size < needed:
        largest = max(_largest_rank(amount.floats), amount.floats // parameters if exact is None else 0)
        cure = f"rank={largest} would fit this budget" if largest else "no rank fits this budget"
        raise BudgetError(
            f"rank {rank} does not fit the budget {amount.text!r} of {amount.held}: at "
            f"{TARGET_ERROR:.0%} error it needs sketch_size={needed:,}, a budget of "
            f"{_named(rank * needed + amount.reserved, parameters)}. {cure}; or give sketch_size as well, for a "
            "noisier score"
        )
    return Shape(rank, size, exact=False)


def _of_size(amount: Amount, parameters: int, size: int, fixed: Fixed, most: int) -> Shape:
    if size < 1:
        raise BudgetError(f"the sketch size must be at least 1, got {size}; leave it out and the budget sets it")
    exact = bool(fixed.exact)
    fits = amount.floats // size
    sized = f"no sketch (size {size:,})" if exact else f"sketch_size={size:,}"
    if fixed.rank is not None:
        if fixed.rank > fits:
            cures = [f"rank={fits} with this size"] if fits else []
            shorter = amount.floats // fixed.rank
            cures += [f"sketch_size={shorter} with this rank"] if shorter >= 2 * fixed.rank else []
            cures += [f"a budget of {_named(fixed.rank * size + amount.reserved, parameters)}"]
            raise BudgetError(
                f"rank {fixed.rank} and {sized} make {fixed.rank * size:,} numbers, the budget "
                f"{amount.text!r} is {amount.held}. What would fit: {' or '.join(cures)}"
            )
        return Shape(fixed.rank, size, exact)
    # Where the size is too short for the target error, at least half of it stays outside the basis.
    rank = min(most, fits, most if exact else max(size - _SPARE, size // 2))
    if rank < 1:
        raise BudgetError(
            f"{sized} does not fit the budget {amount.text!r} of {amount.held}: one "
            f"direction takes {size:,}; the smallest budget is {_named(size + amount.reserved, parameters)}"
            if fits < 1
            else f"{sized} is too short for a direction; take at least sketch_size=2"
        )
    return Shape(rank, size, exact)


def _named(floats: int, parameters: int) -> str:
    """A budget in both ways of writing it, each of them enough.

    >>> _named(801, 44_426)
    "801 floats ('0.0181p')"
    """
    digits = max(0, 2 - math.floor(math.log10(floats / parameters)))
    copies = math.ceil(floats / parameters * 10**digits) / 10**digits
    return f"{floats:,} floats ('{copies:.{digits}f}p')"
