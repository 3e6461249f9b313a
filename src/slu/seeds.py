"""Random streams: one for every purpose, derived from the user's seed and a name.

With one generator for everything, two purposes can draw the same numbers: the first row of a
Gaussian sketch would be Lanczos' start vector. Generators live on the CPU, so that a seed means
the same numbers whatever device the draws are moved to.
"""

from __future__ import annotations

import hashlib

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
