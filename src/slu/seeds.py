"""Random streams: one for every purpose, derived from the user's seed and a name.

With one generator for everything, two purposes can draw the same numbers: the first row of a
Gaussian sketch would be Lanczos' start vector. Generators live on the CPU, so that a seed means
the same numbers whatever device the draws are moved to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose.

    >>> a, b = stream(0, "signs"), stream(0, "rows")
    >>> a.initial_seed() == stream(0, "signs").initial_seed(), a.initial_seed() == b.initial_seed()
    (True, False)
    """
    return torch.Generator("cpu").manual_seed(derived_seed(seed, *purpose))


def derived_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed that depends on the user's seed and on every word of the purpose."""
    text = "\x1f".join([str(int(seed)), *map(str, purpose)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@contextmanager
def fenced(seed: int, *purpose: str | int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the random state of the CPU and one device for a purpose, and restore it at the end.

    Args:
        seed: The user's seed.
        purpose: Words that distinguish this stream from all others of the same seed.
        device: The accelerator to seed as well; None or a CPU for none.
    """
    accelerator = device is not None and device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if accelerator else []):
        torch.default_generator.set_state(stream(seed, *purpose).get_state())
        if accelerator:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(derived_seed(seed, *purpose))
        yield
