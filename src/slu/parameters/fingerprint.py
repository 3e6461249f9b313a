"""Which weights exactly: so that a score is never used with another network's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def fingerprint(model: nn.Module) -> dict[str, str]:
    """For every parameter and buffer its shape, type and a hash of its values.

    Buffers count too: running statistics change what a network computes. Values are hashed bit
    by bit on the CPU, so the device does not matter.

    Cost: one read of the weights, about a second for 10⁹ bytes.
    """
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    return {name: _describe(value.detach()) for name, value in named.items()}


def _describe(value: torch.Tensor) -> str:
    flat = value.cpu().contiguous().reshape(-1)
    state = hashlib.blake2b(digest_size=12)
    if flat.numel():
        bits: Any = flat.view(torch.uint8).numpy()  # numpy's stubs do not say that it is a buffer
        state.update(bits)
    shape = "x".join(map(str, value.shape)) or "scalar"
    return f"{shape} {str(value.dtype).removeprefix('torch.')} {state.hexdigest()}"


def difference(expected: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """The first difference between two fingerprints as a clause, or None where they agree.

    >>> difference({"fc.weight": "2x3 float32 aa"}, {"fc.weight": "2x4 float32 bb"})
    'fc.weight is 2x4 float32 instead of 2x3 float32'
    """
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    if missing:
        return f"{missing[0]} is missing" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
    if extra:
        return f"{extra[0]} is new" + (f" and {len(extra) - 1} more" if len(extra) > 1 else "")
    changed = [name for name in expected if expected[name] != found[name]]
    if not changed:
        return None
    name = changed[0]
    before, after = expected[name].rpartition(" ")[0], found[name].rpartition(" ")[0]
    if before != after:
        return f"{name} is {after} instead of {before}"
    return f"the values of {name} have changed" + (f" and {len(changed) - 1} more" if len(changed) > 1 else "")
