"""The layout of a safetensors file: the length of an index in 8 bytes, the index as JSON, the tensors' bytes.

Written and read here, not by the library of that name, which opens a path twice while reading (so that
a file replaced between the two is half the old and half the new one), returns tensors that change when
the file does, and leaves its temporary file when the process is killed. The files are the same.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH, _METADATA = 8, "__metadata__"
_MOST = 64  # dimensions

LONGEST = 16 << 20
"""Bytes of an index. Safetensors allows 100 MB; ours holds a fingerprint of the network, some 200 bytes per tensor of
its parameters, and a mixture of experts with 23,000 of them needs 4 MB."""
MOST_VALUES = 1 << 20
"""Values in an index or in a header. Each costs some 100 bytes once it is read, whatever the length of its text."""


@dataclass(frozen=True)
class Index:
    """The beginning of a file: texts by name, entries that are not checked yet, and how many bytes follow and are."""

    metadata: dict[str, str]
    entries: dict[str, Any]
    size: int
    whole: int


def dump(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write contiguous tensors of the CPU without a copy.

    Raises:
        ValueError: A type that the layout does not know, or an index above the limits.
    """
    index: dict[str, Any] = {_METADATA: dict(metadata)}
    # Wide numbers first, so that each tensor begins at a multiple of its own width.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    place = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _NAMES:
            raise ValueError(f"{name} is {tensor.dtype}; only {', '.join(map(str, _NAMES))} can be stored")
        offsets = [place, place + tensor.numel() * tensor.element_size()]
        index[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        place = offsets[1]
    text = json.dumps(index)
    _check_length(len(text))
    _check_values(text)
    text += " " * (-len(text) % _LENGTH)
    file.write(len(text).to_bytes(_LENGTH, "little"))
    file.write(text.encode())
    for name in names:
        if tensors[name].numel():
            file.write(bits(tensors[name]))


def read_index(file: BinaryIO) -> Index:
    """The index at the beginning of a file; its length is checked before it is read, its values before they are.

    Raises:
        ValueError: It is not a whole file of this layout, or above its limits.
    """
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(_LENGTH), "little")
    if size < _LENGTH or length > size - _LENGTH:
        raise ValueError(f"its index should have {length} bytes, the file has {size}")
    _check_length(length)
    text = file.read(length)
    index = text.rstrip(b" ")
    if not (index.startswith(b"{") and index.endswith(b"}") and len(text) - len(index) < _LENGTH):
        raise ValueError(f"its index is not one JSON object, with fewer than {_LENGTH} spaces after it")
    try:
        entries = parsed(index.decode())
        metadata: dict[str, str] = entries.pop(_METADATA, {})
        if not all(isinstance(text, str) for text in metadata.values()):
            raise TypeError("metadata are texts")
    except (TypeError, AttributeError) as reason:
        raise ValueError("its index has another form") from reason
    return Index(metadata, entries, size - _LENGTH - length, size)


def parsed(text: str) -> Any:
    """JSON of an index or a header; stricter than `json.loads`, which takes the last of two equal keys.

    Raises:
        ValueError: Not JSON, a key twice in one object, a number that is not finite, too many or too deep values.

    Cost: memory of the text and of `MOST_VALUES` values at most.
    """
    _check_values(text)
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)
    except RecursionError as reason:
        raise ValueError("its values are nested too deep") from reason


def _check_length(length: int) -> None:
    if length > LONGEST:
        raise ValueError(f"an index of {length:,} bytes came, {LONGEST:,} are the most")


def _check_values(text: str) -> None:
    # Each but the first of a list or an object comes after a comma; commas within texts count too, and are few.
    values = sum(map(text.count, ",[{"))
    if values > MOST_VALUES:
        raise ValueError(f"about {values:,} values came, {MOST_VALUES:,} are the most")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError(f"an object has {len(pairs)} keys, of which {len(pairs) - len(values)} stood there before")
    return values


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return value


def read_tensors(file: BinaryIO, index: Index) -> dict[str, Tensor]:
    """The tensors after an index that was just read, in memory of their own.

    Nothing is allocated before the entries are known to fill the file exactly.

    Raises:
        ValueError: They do not, or the file became shorter meanwhile.
        MemoryError: There is not as much memory.
    """
    tensors: dict[str, Tensor] = {}
    for name, dtype, shape in _checked(index):
        try:
            tensors[name] = tensor = torch.empty(shape, dtype=dtype)
        except RuntimeError as reason:
            raise MemoryError(f"{name} takes {math.prod(shape) * dtype.itemsize:,} bytes of memory") from reason
        # Filled completely but at the end of a file; the type of `open` says so, that of BinaryIO does not.
        if tensor.numel() and cast(BufferedReader, file).readinto(bits(tensor)) != tensor.nbytes:
            raise ValueError(f"it ends within {name}")
    return tensors


def _checked(index: Index) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    """Name, type and shape of every tensor, in the order of their bytes."""
    entries: list[tuple[str, torch.dtype, tuple[int, ...]]] = []
    place = 0
    try:
        for name, entry in sorted(index.entries.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
            sizes = len(shape) <= _MOST and all(type(each) is int and each >= 0 for each in shape)
            # Strides are products of sizes, also of a tensor that is empty.
            if not sizes or math.prod(max(each, 1) for each in shape) >= 1 << 59:
                raise ValueError(f"{name} has no shape that a tensor could have")
            stop = place + math.prod(shape) * dtype.itemsize
            offsets = entry["data_offsets"]
            if offsets != [place, stop] or not all(type(each) is int for each in offsets):
                raise ValueError(f"the bytes of {name} are not where its shape puts them")
            entries.append((name, dtype, shape))
            place = stop
    except (KeyError, TypeError) as reason:
        raise ValueError(f"its index has another form ({type(reason).__name__}: {reason})") from reason
    if place != index.size:
        raise ValueError(f"its tensors should have {place} bytes, the file has {index.size} of them")
    return entries


def bits(tensor: Tensor) -> Any:
    """The bytes of a tensor without a copy, as a buffer (unknown to numpy's stubs)."""
    return tensor.reshape(-1).view(torch.uint8).numpy()
