"""Threads in the place of processes, for what these tell each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class ThreadAsProcess:
    """A process of a group, which is a thread of this one.

    Attributes:
        rank, size: As of `Processes`.
        told: By name, what all gave.
    """

    def __init__(self, rank: int, given: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self._given, self._barrier = rank, len(given), given, barrier
        self.told: dict[str, list[Any]] = {}

    def gathered(self, what: str, value: Any) -> list[Any]:
        self._given[self.rank] = value
        self._barrier.wait()
        self.told[what] = list(self._given)
        self._barrier.wait()
        return self.told[what]


def in_threads(work: Callable[[ThreadAsProcess], Any], size: int) -> list[Any]:
    """What each of so many processes makes, by rank."""
    given, barrier = [None] * size, threading.Barrier(size, timeout=20)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(ThreadAsProcess(rank, given, barrier)), range(size)))
