"""A fingerprint that tells a network's weights from another's: a hash of every parameter and buffer."""

from __future__ import annotations

import hashlib
import math
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from slu.errors import ModelError

MODEL_IN_USE = threading.RLock()
"""Held while a model is called with replacements in the places of its parameters, so also while these are read."""

_COMPILED = "_orig_mod."  # of a module inside of the model; around all of it `unwrapped` takes it away


def fingerprint(model: nn.Module) -> dict[str, str]:
    """For every parameter and buffer its shape, type and a hash of its values.

    Buffers count too: running statistics change what a network computes. Values are hashed bit
    by bit on the CPU, so the device does not matter. A tensor used under several names counts
    once, under its first.

    Raises:
        ModelError: A tensor has no values: it is lazy, or on the device "meta".

    Cost: one read of the weights, about a second per 10⁹ bytes.
    """
    with MODEL_IN_USE:
        named = dict(model.named_parameters()) | dict(model.named_buffers())
    return {name: described(name, value) for name, value in named.items()}


class KnownWeights:
    """The weights that a score was fitted on, and whether a model still has them.

    The fingerprint is computed again only where torch has counted a change in place, or a tensor is another object or
    elsewhere in memory, as on another device. Fused optimizers and writing to `parameter.data` are not counted: for
    these one number of every tensor is compared as well, which training changes, but not every single change.

    Args:
        model: The network.
        fingerprint: Of the fit; that of the model as it is now, unless given.

    Cost: a few microseconds per tensor while nothing has changed.
    """

    def __init__(self, model: nn.Module, known: Mapping[str, str] | None = None) -> None:
        with MODEL_IN_USE:
            self.fingerprint = fingerprint(model) if known is None else dict(known)
            self._marks, self._sample = (None, None) if known is not None else (_marks(model), _sample(model))

    def change(self, model: nn.Module) -> str | None:
        """What is different from the fit as a clause; None where nothing is."""
        with MODEL_IN_USE:
            if self._marks is not None and _unmoved(model, self._marks) and _sample(model) == self._sample:
                return None
            changed = difference(self.fingerprint, fingerprint(model))
            if changed is None:
                self._marks, self._sample = _marks(model), _sample(model)
        return changed


_Mark = tuple["weakref.ref[torch.Tensor]", int, int]  # a number of freed memory may be that of another tensor


def _marks(model: nn.Module) -> list[_Mark]:
    return [(weakref.ref(tensor), *_place(tensor)) for tensor in _tensors(model)]


def _unmoved(model: nn.Module, marks: list[_Mark]) -> bool:
    count = 0
    for count, tensor in enumerate(_tensors(model), 1):
        if count > len(marks):
            return False
        seen, *place = marks[count - 1]
        if seen() is not tensor or tuple(place) != _place(tensor):
            return False
    return count == len(marks)


def _sample(model: nn.Module) -> list[float]:
    """The number in the middle of every parameter and buffer."""
    parts = (dense_parts(tensor.detach())[-1] for tensor in _tensors(model) if not tensor.is_meta)
    values = [part for part in parts if part.numel()]
    middles = [each[tuple(size // 2 for size in each.shape)].real for each in values]  # no copy, whatever the strides
    return torch.stack([each.to(values[0].device, torch.float64) for each in middles]).tolist() if middles else []


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    """How often it was changed in place, which torch does not count in inference mode, and where it is."""
    return -1 if tensor.is_inference() else tensor._version, dense_parts(tensor)[-1].data_ptr()


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            yield from (tensor for tensor in store.values() if tensor is not None)


def summary(weights: Mapping[str, str]) -> dict[str, Any]:
    """A fingerprint in four lines: how many tensors and numbers, of which types, and one hash over all.

    >>> summary({"fc.weight": "2x3 float32 aa", "fc.bias": "2 float32 bb"})
    {'tensors': 2, 'numbers': 8, 'types': ['float32'], 'hash': 'ed1f7dd872f59c33'}
    """
    numbers, types = 0, set[str]()
    for text in weights.values():
        shape, dtype, _ = text.split(" ")
        numbers += 1 if shape == "scalar" else math.prod(map(int, shape.split("x")))
        types.add(dtype)
    lines = "\n".join(f"{name} {weights[name]}" for name in sorted(weights))
    one = hashlib.blake2b(lines.encode(), digest_size=8).hexdigest()
    return {"tensors": len(weights), "numbers": numbers, "types": sorted(types), "hash": one}


def described(name: str, value: torch.Tensor) -> str:
    """Shape, type and a hash of the values of one tensor."""
    if is_lazy(value) or value.is_meta:
        raise ModelError(f"{name} has no values yet; load the weights into the model first")
    state = hashlib.blake2b(digest_size=12)
    for part in dense_parts(value.detach()):
        flat = part.cpu().contiguous().reshape(-1)
        if flat.numel():
            bits: Any = flat.view(torch.uint8).numpy()  # numpy's stubs do not say that it is a buffer
            state.update(bits)
    shape = "x".join(map(str, value.shape)) or "scalar"
    return f"{shape} {str(value.dtype).removeprefix('torch.')} {state.hexdigest()}"


def dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What a tensor is kept as: itself; where it is sparse, as the edges of a graph may be, its places and numbers."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def difference(expected: Mapping[str, str], actual: Mapping[str, str]) -> str | None:
    """The first difference between two fingerprints as a clause, or None where they agree.

    >>> difference({"fc.weight": "2x3 float32 aa"}, {"fc.weight": "2x4 float32 bb"})
    'fc.weight is 2x4 float32 instead of 2x3 float32'
    """
    missing = [name for name in expected if name not in actual]
    extra = [name for name in actual if name not in expected]
    if missing and extra and _prefix(expected, actual):
        return f"every name begins with {_prefix(expected, actual)!r}, as in a wrapped model; pass the module inside"
    if missing and extra and _prefix(actual, expected):
        return f"no name begins with {_prefix(actual, expected)!r}; pass the model wrapped as it was"
    parts = [name for name in (*missing, *extra) if _COMPILED in name]
    if parts and {name.replace(_COMPILED, "") for name in missing} == {name.replace(_COMPILED, "") for name in extra}:
        return (
            f"{parts[0]} is of a part that torch.compile wraps in one of both networks and not in "
            "the other; part.compile() compiles it in place, with the names that it has"
        )
    if missing:
        return f"{missing[0]} is missing" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
    if extra:
        return f"{extra[0]} is new" + (f" and {len(extra) - 1} more" if len(extra) > 1 else "")
    changed = [name for name in expected if expected[name] != actual[name]]
    if not changed:
        return None
    name = changed[0]
    before, after = (each[name].rpartition(" ")[0] for each in (expected, actual))
    if before != after:
        return f"{name} is {after} instead of {before}"
    return f"the values of {name} have changed" + (f" and {len(changed) - 1} more" if len(changed) > 1 else "")


def _prefix(short: Mapping[str, str], long: Mapping[str, str]) -> str | None:
    """The prefix of every name of the second; a module that has the network as an attribute adds one."""
    first, other = min(short), min(long)
    prefix = other.removesuffix(first)
    return prefix if other.endswith(first) and {prefix + name for name in short} == set(long) else None
