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


@dataclass(frozen=True)
class Index:
    """The beginning of a file: texts by name, entries that are not checked yet, and the number of bytes that follow."""

    metadata: dict[str, str]
    entries: dict[str, Any]
    size: int


def dump(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write contiguous tensors of the CPU without a copy.

    Raises:
        ValueError: A type that the layout does not know.
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
    text = json.dumps(index).encode()
    text += b" " * (-len(text) % _LENGTH)
    file.write(len(text).to_bytes(_LENGTH, "little"))
    file.write(text)
    for name in names:
        if tensors[name].numel():
            file.write(bits(tensors[name]))


def read_index(file: BinaryIO) -> Index:
    """The index at the beginning of a file, no longer than the file.

    Raises:
        ValueError: It is not a whole file of this layout.
    """
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(_LENGTH), "little")
    if size < _LENGTH or length > size - _LENGTH:
        raise ValueError(f"its index should have {length} bytes, the file has {size}")
    try:
        entries = json.loads(file.read(length).decode())
        metadata: dict[str, str] = entries.pop(_METADATA, {})
        if not all(isinstance(text, str) for text in metadata.values()):
            raise TypeError("metadata are texts")
    except (RecursionError, TypeError, AttributeError) as reason:
        raise ValueError("its index has another form") from reason
    return Index(metadata, entries, size - _LENGTH - length)


def read_tensors(file: BinaryIO, index: Index) -> dict[str, Tensor]:
    """The tensors after an index that was just read, in memory of their own.

    Nothing is allocated before the entries are known to fill the file exactly.

    Raises:
        ValueError: They do not, or the file became shorter meanwhile.
    """
    tensors: dict[str, Tensor] = {}
    for name, dtype, shape in _checked(index):
        tensors[name] = tensor = torch.empty(shape, dtype=dtype)
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
            if len(shape) > _MOST or not all(type(each) is int and 0 <= each < 1 << 62 for each in shape):
                raise ValueError(f"{name} has no shape that a tensor could have")
            stop = place + math.prod(shape) * dtype.itemsize
            if entry["data_offsets"] != [place, stop]:
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
