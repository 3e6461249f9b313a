"""The newest of two files: one may be damaged, or missing between two renames, and the other serves."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from slu.errors import DamagedFileError
from slu.storage.files import check_writable, read, write


def write_generation(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write a file and keep the one before it as `<path>.previous`."""
    path = Path(path)
    check_writable(path)
    if path.exists():
        path.replace(_previous(path))
    write(path, tensors, header)


def read_newest(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """The newest whole generation, or None where there is none.

    Raises:
        DamagedFileError: There are generations, but none is whole.
    """
    path = Path(path)
    damaged: DamagedFileError | None = None
    for candidate in (path, _previous(path)):
        if not candidate.exists():
            continue
        try:
            found = read(candidate)
        except DamagedFileError as reason:
            damaged = reason
            continue
        if damaged is not None:
            warnings.warn(f"{damaged}; going on from the one before it, {candidate}", stacklevel=2)
        return found
    if damaged is not None:
        raise DamagedFileError(f"{damaged}. The one before it is no better or not there; delete both to begin anew")
    return None


def _previous(path: Path) -> Path:
    return path.with_name(path.name + ".previous")
