"""Randomness that torch draws from its global generator, fenced in.

Initial weights and dropout take no generator of their own. Inside `fenced` the global one is
seeded for a purpose; on the way out it is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from slu.seeds import derived_seed

T = TypeVar("T")


@contextmanager
def fenced(seed: int, *purpose: str | int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global generators of the CPU and of one device; give their old states back after.

    Args:
        seed: The user's seed.
        purpose: Words that make this stream different from every other of the same seed.
        device: The accelerator whose draws are fenced in too; None or a CPU for none.
    """
    accelerator = device is not None and device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if accelerator else []):
        # torch.manual_seed would also reseed accelerators that are not given back afterwards.
        torch.default_generator.manual_seed(derived_seed(seed, *purpose))
        if accelerator:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(derived_seed(seed, *purpose))
        yield


def seeded(build: Callable[[], T], seed: int) -> T:
    """Build a model with initial weights that depend on the seed alone.

    >>> one, two = (seeded(lambda: torch.nn.Linear(2, 1), seed=0) for _ in range(2))
    >>> torch.equal(one.weight, two.weight)
    True
    """
    with fenced(seed, "initial weights"):
        return build()
