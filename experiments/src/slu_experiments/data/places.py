"""Where the data sets lie, and what to say when they do not."""

from __future__ import annotations

import os
from pathlib import Path

from slu.errors import DataError, MissingDataError

VARIABLE = "SLU_DATA"


def named(root: str | Path | None = None) -> Path:
    """The folder that was named, or what SLU_DATA says; it need not exist.

    Raises:
        MissingDataError: Neither says anything.
    """
    said = root if root is not None else os.environ.get(VARIABLE)
    if not said:
        raise MissingDataError(
            f"the folder of the data sets is not known; name it by --data or by: export {VARIABLE}=FOLDER"
        )
    return Path(said).expanduser()


def folder(root: str | Path | None = None) -> Path:
    """The folder with the data sets: the one named, or what SLU_DATA says.

    Raises:
        MissingDataError: Neither says anything, or there is no such folder.
    """
    path = named(root)
    if not path.is_dir():
        raise MissingDataError(
            f"there is no folder {path}, where the data sets should be; name another by --data or {VARIABLE}, or "
            "fill it with: slu-paper data fetch NAME"
        )
    return path


def present(path: Path, name: str) -> Path:
    """The path of a file or folder of a data set, if it is there.

    Raises:
        MissingDataError: It is not; says how to get it.
    """
    if not path.exists():
        raise MissingDataError(f"{name} is not here: there is no {path}. Get it with: slu-paper data fetch {name}")
    return path


def damaged(path: Path, what: str, name: str) -> DataError:
    """The error for a file that is not what its set lays down."""
    return DataError(f"{path} {what}; remove it and get it again with: slu-paper data fetch {name}")
