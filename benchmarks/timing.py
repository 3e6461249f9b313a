"""Ratios of times, taken in turns: the machine's mood is in both, and divides out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """The median of paired ratios and the range of their middle half."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(work: Callable[[], object], unit: Callable[[], object], *, rounds: int = 15, least: float = 0.02) -> Ratio:
    """How many units a piece of work takes: both are run in turns, warmed up first.

    Each is repeated within a round until it takes `least` seconds, so that short calls are not
    measured in ticks of the clock.
    """
    counts = [_repeats(task, least) for task in (work, unit)]
    ratios = sorted(_seconds(work, counts[0]) / _seconds(unit, counts[1]) for _ in range(rounds))
    quarter = rounds // 4
    return Ratio(statistics.median(ratios), ratios[quarter], ratios[-1 - quarter])


def _repeats(task: Callable[[], object], least: float) -> int:
    task()
    return max(1, round(least / max(_seconds(task, 1), 1e-7)))


def _seconds(task: Callable[[], object], count: int) -> float:
    begun = time.perf_counter()
    for _ in range(count):
        task()
    return (time.perf_counter() - begun) / count
