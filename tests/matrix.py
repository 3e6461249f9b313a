"""How much of a matrix of faults is tried: a part at equal distances; with SLU_MATRIX in the environment all of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

WHOLE = bool(os.environ.get("SLU_MATRIX"))

T = TypeVar("T")


def step(distance: int) -> int:
    """The distance between those that are tried."""
    return 1 if WHOLE else distance


def spread(faults: Iterable[T], distance: int) -> list[T]:
    """The first and those at this distance after each other.

    A distance without a divisor in common with the number of kinds that take turns meets every kind, at other places.
    """
    return list(faults)[:: step(distance)]
