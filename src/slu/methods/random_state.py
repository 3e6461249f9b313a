"""Torch's own random state, fenced in: for draws that take no generator (dropout, initial weights, shuffling)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from slu.seeds import derived_seed, stream


@contextmanager
def fenced(seed: int, *purpose: str | int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the CPU's and one device's random state for a purpose; on the way out they are as they were.

    Args:
        seed: The user's seed.
        purpose: Words that make this stream different from every other of the same seed.
        device: The accelerator whose draws are fenced in too; None or a CPU for none.
    """
    accelerator = device is not None and device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if accelerator else []):
        torch.default_generator.set_state(stream(seed, *purpose).get_state())
        if accelerator:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(derived_seed(seed, *purpose))
        yield
