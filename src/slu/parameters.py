"""A module's chosen parameters as one flat vector, and a fingerprint that tells its weights from another network's."""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from slu.errors import ModelError, SelectionError

Choice: TypeAlias = str | Iterable[str] | Callable[[str, nn.Parameter], bool] | None
"""Names, globs, a predicate of name and parameter, or None for all trainable parameters."""


@dataclass(frozen=True)
class Segment:
    """One parameter tensor's place in the flat vector: coordinates `start` to `stop`."""

    name: str
    start: int
    stop: int
    shape: torch.Size


SMALL_TENSOR = 4096
"""Numbers from which a tensor is scaled by rows and columns. On regressions by networks of 50 units, whose matrices are
smaller, that would lose 0.01 to 0.03 of the AUROC, and save next to nothing."""


def matrix_shape(shape: Sequence[int], *, least: int = 0) -> tuple[int, int]:
    """(o, i) of a tensor seen as a matrix: its first dimension and the product of the others, without those of size 1.

    Args:
        shape: The tensor's.
        least: Numbers below which it is seen as a vector instead.

    >>> matrix_shape((16, 6, 5, 5)), matrix_shape((32, 1, 3, 3)), matrix_shape((84,)), matrix_shape((10, 1))
    ((16, 150), (32, 9), (1, 84), (1, 10))
    """
    sizes = [size for size in shape if size != 1]
    numbers = math.prod(sizes)
    return (sizes[0], numbers // sizes[0]) if len(sizes) > 1 and numbers >= least else (1, numbers)


@dataclass(frozen=True)
class Selection:
    """An ordered choice of parameters: names, shapes and places, no values.

    The order is that of `named_parameters()`. A tensor that a module uses under two names is
    one segment, under its first name. `dtype` is the type of flat vectors: the parameters' own,
    but never less than float32, because sums over a data set lose too much in half precision.
    """

    segments: tuple[Segment, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def count(self) -> int:
        """p, the length of the flat vector."""
        return self.segments[-1].stop

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(segment.name for segment in self.segments)

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """(o, i) of every tensor seen as a matrix."""
        return tuple(matrix_shape(segment.shape) for segment in self.segments)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of a flat (p,) vector, shaped like the parameters; nothing is copied."""
        if vector.shape != (self.count,):
            raise SelectionError(
                f"a flat vector of {self.count} parameters is needed, got the shape {tuple(vector.shape)}"
            )
        return {segment.name: vector[segment.start : segment.stop].view(segment.shape) for segment in self.segments}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One new (p,) vector from tensors shaped like the parameters."""
        return torch.cat([tensors[segment.name].reshape(-1).to(self.dtype) for segment in self.segments])

    def values(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's selected parameters by name: they share storage but carry no history."""
        named = dict(model.named_parameters())
        return {name: named[name].detach() for name in self.names}


def select(model: nn.Module, params: Choice = None) -> Selection:
    """Choose parameters of a module.

    Args:
        model: Any module.
        params: None for every trainable parameter; a name or glob or several of them
            (`"head.*"`, `["layer4.*", "fc.weight"]`), which also finds frozen ones; or a
            predicate of name and parameter.

    Raises:
        SelectionError: Nothing was selected, or a name fits no parameter.
        ModelError: A selected parameter has no values yet, or values that are not finite.
    """
    named = dict(model.named_parameters())
    if params is None:
        chosen = [name for name, value in named.items() if value.requires_grad]
        if not chosen:
            raise SelectionError(
                f"the model has {len(named)} parameters but none is trainable; "
                "name the ones that count, for example params='*'"
            )
    elif callable(params):
        chosen = [name for name, value in named.items() if params(name, value)]
        if not chosen:
            raise SelectionError(f"the predicate chose none of the model's {len(named)} parameters")
    else:
        chosen = _by_pattern(model, [params] if isinstance(params, str) else list(params))
    return _lay_out(chosen, named)


def _by_pattern(model: nn.Module, patterns: list[str]) -> list[str]:
    # A tied tensor may be asked for by any of its names; the first one stands for it.
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(value), name)
    wanted: set[str] = set()
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise SelectionError(
                f"parameters are chosen by name, got a {type(pattern).__name__}; give the names that "
                "model.named_parameters() gives, or globs of them"
            )
        matching = {names[name] for name in names if name == pattern or fnmatchcase(name, pattern)}
        if not matching:
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4) or list(names)[:3]
            hint = f"; near it are {', '.join(near)}" if near else "; the model has no parameters"
            raise SelectionError(f"no parameter is called or matches {pattern!r}{hint}")
        wanted |= matching
    if not wanted:
        raise SelectionError("an empty list selects no parameters; give names or globs, or leave params out")
    return [name for name, _ in model.named_parameters() if name in wanted]


def _lay_out(names: list[str], named: Mapping[str, nn.Parameter]) -> Selection:
    segments: list[Segment] = []
    start = 0
    for name in names:
        value = named[name]
        _check_values(name, value)
        segments.append(Segment(name, start, start + value.numel(), value.shape))
        start += value.numel()
    if start == 0:
        raise SelectionError(f"the selected parameters {names} hold no numbers")
    devices = {named[name].device for name in names}
    if len(devices) > 1:
        raise ModelError(f"the selected parameters are on {sorted(map(str, devices))}; move the model to one device")
    dtype = reduce(torch.promote_types, [named[name].dtype for name in names], torch.float32)
    return Selection(tuple(segments), dtype, devices.pop())


def _check_values(name: str, value: nn.Parameter) -> None:
    if isinstance(value, nn.UninitializedParameter):
        raise ModelError(f"{name} has no values yet; run one batch through the lazy module first")
    if not value.dtype.is_floating_point:
        raise SelectionError(f"{name} is {value.dtype}; only real floating-point parameters can be selected")
    if not value.is_meta and not bool(torch.isfinite(value.detach()).all()):
        raise ModelError(f"{name} holds NaN or infinity; the network was not trained to finite weights")


def fingerprint(model: nn.Module) -> dict[str, str]:
    """For every parameter and buffer its shape, type and a hash of its values.

    Buffers count too: running statistics change what a network computes. Values are hashed bit
    by bit on the CPU, so the device does not matter. A tensor used under several names counts
    once, under its first.

    Raises:
        ModelError: A tensor has no values: it is lazy, or on the device "meta".

    Cost: one read of the weights, about a second per 10⁹ bytes.
    """
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    return {name: described(name, value) for name, value in named.items()}


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
    value = value.detach()
    flat = value.cpu().contiguous().reshape(-1)
    state = hashlib.blake2b(digest_size=12)
    if flat.numel():
        bits: Any = flat.view(torch.uint8).numpy()  # numpy's stubs do not say that it is a buffer
        state.update(bits)
    shape = "x".join(map(str, value.shape)) or "scalar"
    return f"{shape} {str(value.dtype).removeprefix('torch.')} {state.hexdigest()}"


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
    if missing:
        return f"{missing[0]} is missing" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
    if extra:
        return f"{extra[0]} is new" + (f" and {len(extra) - 1} more" if len(extra) > 1 else "")
    changed = [name for name in expected if expected[name] != actual[name]]
    if not changed:
        return None
    name = changed[0]
    before, after = expected[name].rpartition(" ")[0], actual[name].rpartition(" ")[0]
    if before != after:
        return f"{name} is {after} instead of {before}"
    return f"the values of {name} have changed" + (f" and {len(changed) - 1} more" if len(changed) > 1 else "")


def _prefix(short: Mapping[str, str], long: Mapping[str, str]) -> str | None:
    """The prefix of every name of the second; DataParallel and torch.compile add one."""
    first, other = min(short), min(long)
    prefix = other.removesuffix(first)
    return prefix if other.endswith(first) and {prefix + name for name in short} == set(long) else None
