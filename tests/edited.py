"""Files whose fields and tensors are replaced by hostile values, with a checksum that fits."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from slu.artifacts.stored import inventory


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


VALUES = {
    "null": None, "true": True, "-1": -1, "0": 0, "1": 1, "2**63": 2**63, "10**400": 10**400, "1e308": 1e308,
    "-1.5": -1.5, "empty text": "", "text": "x", "escapes": "é\x1b[31m", "empty list": [], "list of list": [[]],
    "empty dict": {}, "dict": {"a": 1}, "nested": _nested(200),
}  # fmt: skip
FEW = ("null", "true", "-1", "10**400", "text", "empty list", "dict")
"""Of which a sample is made."""

Path = tuple[str | int, ...]


def places(plain: Any, path: Path = ()) -> Iterator[Path]:
    """Every field of a header, containers included; of long lists the first and the last entry."""
    if path:
        yield path
    if isinstance(plain, dict):
        keys: list[Any] = list(plain)
    elif isinstance(plain, list):
        keys = list(range(len(plain))) if len(plain) < 3 else [0, len(plain) - 1]
    else:
        return
    for key in keys:
        yield from places(plain[key], (*path, key))


def headers(header: dict[str, Any], values: Any = VALUES) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """What was done, where, and the header with it done: each field replaced, removed, or given one more key."""
    header = {key: header[key] for key in header if key != "format"}  # which `write` sets
    for path in places(header):
        for name in values:
            yield f"{_words(path)} = {name}", path, _edited(header, path, lambda at, key, n=name: _set(at, key, n))
        yield f"{_words(path)} removed", path, _edited(header, path, lambda at, key: at.pop(key))
        if isinstance(_at(header, path), dict):
            yield f"{_words(path)} added to", path, _edited(header, path, lambda at, key: at[key].update(nonsense=1))
    yield "a key added", (), {**header, "nonsense": 1}


def tensors(stored: dict[str, Tensor]) -> Iterator[tuple[str, str, dict[str, Tensor]]]:
    """What was done, to which tensor, and the tensors with it done."""
    for name, tensor in stored.items():
        for fault, changed in _changed(tensor).items():
            yield f"{name}: {fault}", name, {**stored, name: changed}
        yield f"{name}: missing", name, {each: stored[each] for each in stored if each != name}
    yield "a tensor added", "", {**stored, "nonsense": torch.zeros(3)}


def believed(header: dict[str, Any], changed: dict[str, Tensor]) -> dict[str, Any]:
    """The header with an inventory of these tensors: of SLU only the witness in it contradicts them."""
    return {**header, "tensors": inventory(changed)}


def _changed(tensor: Tensor) -> dict[str, Tensor]:
    changed = {"zeros": torch.zeros_like(tensor), "empty": tensor[..., :0] if tensor.dim() else tensor[None][:0]}
    changed["other type"] = tensor.to(torch.float32 if tensor.dtype == torch.float64 else torch.float64)
    changed["whole numbers"] = tensor.to(torch.int32)
    changed["one dimension more"] = tensor[None]
    if tensor.dim() and len(tensor) > 1:
        changed |= {"rows reversed": tensor.flip(0), "shorter": tensor[1:], "longer": torch.cat([tensor, tensor[:1]])}
    if tensor.dim() > 1:
        changed |= {"columns reversed": tensor.flip(-1), "transposed": tensor.transpose(-1, -2)}
        changed["narrower"] = tensor[..., 1:]
    if tensor.is_floating_point() and tensor.numel():
        changed |= {"negated": -tensor, "scaled": 2 * tensor}
        for word, value in (("NaN", torch.nan), ("inf", torch.inf), ("-inf", -torch.inf), ("1e30", 1e30)):
            changed[word] = tensor.clone()
            changed[word].view(-1)[tensor.numel() // 2] = value
    return changed


def _set(at: Any, key: Any, name: str) -> None:
    at[key] = copy.deepcopy(VALUES[name])


def _at(plain: Any, path: Path) -> Any:
    for key in path:
        plain = plain[key]
    return plain


def _edited(header: dict[str, Any], path: Path, edit: Any) -> dict[str, Any]:
    header = copy.deepcopy(header)
    edit(_at(header, path[:-1]), path[-1])
    return header


def _words(path: Path) -> str:
    return ".".join(map(str, path))
