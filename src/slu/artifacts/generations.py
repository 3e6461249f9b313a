"""The newest of two files: one may be damaged, or missing between two renames, and the other serves."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from slu.artifacts.files import read, write
from slu.artifacts.replacing import check_writable, target
from slu.errors import DamagedFileError, StorageError


def write_generation(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write a file and keep the one before it as `<path>.previous`.

    Raises:
        StorageError: It cannot be written; what was there is there, or is the previous one.
    """
    path = target(path)
    check_writable(path)
    try:
        if path.exists():
            path.replace(_beside(path, "previous"))
    except OSError as reason:
        raise StorageError(f"{path} could not be put aside for a newer one: {reason}") from reason
    write(path, tensors, header)


def read_newest(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The newest whole generation, or None where there is none.

    Raises:
        DamagedFileError: There are generations, but none is whole.
    """
    path = target(path)
    damaged: DamagedFileError | None = None
    for candidate in (path, _beside(path, "previous")):
        if not candidate.exists():
            continue
        try:
            stored = read(candidate)
        except DamagedFileError as reason:
            damaged = reason
            continue
        if damaged is not None:
            # Out of the way, or the next generation would put it in the place of the whole one.
            path.replace(_beside(path, "damaged"))
            warnings.warn(f"{damaged}; going on from the one before it, {candidate}", stacklevel=2)
        return stored
    if damaged is not None:
        raise DamagedFileError(f"{damaged}. The one before it is no better or not there; delete both to begin anew")
    return None


def _beside(path: Path, which: str) -> Path:
    return path.with_name(f"{path.name}.{which}")
