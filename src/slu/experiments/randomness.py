"""Models whose initial weights depend on a seed alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from slu.seeds import fenced

T = TypeVar("T")


def seeded(build: Callable[[], T], seed: int) -> T:
    """Build a model with initial weights that depend on the seed alone.

    >>> import torch
    >>> one, two = (seeded(lambda: torch.nn.Linear(2, 1), seed=0) for _ in range(2))
    >>> torch.equal(one.weight, two.weight)
    True
    """
    with fenced(seed, "initial weights"):
        return build()
