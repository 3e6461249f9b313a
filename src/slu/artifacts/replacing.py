"""A file replaces another only when it is complete, also where processes are killed or write at the same time.

A new file is written beside the path, under a unique name, and renamed at the end. Its writer holds a lock on it,
which the kernel releases when the process ends; so a file of this kind without a lock was left by a process that
was killed, and is removed.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from slu.errors import StorageError

try:
    import fcntl
except ImportError:  # not on Windows, where an open file can be neither removed nor replaced
    fcntl = None

_TOKEN = re.compile(r"[0-9a-f]{8}\.partial")


def check_writable(path: str | Path) -> None:
    """Refuse a path that cannot be written, before hours of work and not after.

    A file is made beside it and removed again: permissions alone do not show read-only disks,
    names that are too long, or what an administrator may do.

    Raises:
        StorageError: Saying why, and what to do.
    """
    path = target(path)
    if os.path.isdir(path):  # noqa: PTH112 (pathlib's raises where a folder above may not be entered)
        raise StorageError(f"{path} is a folder; name a file in it")
    if os.path.lexists(path) and not os.path.isfile(path):  # noqa: PTH113
        raise StorageError(f"{path} is not a plain file and will not be replaced; name another")
    if not os.path.isdir(path.parent):  # noqa: PTH112
        raise StorageError(f"{path} cannot be written: there is no folder {path.parent}; make it first")
    try:
        partial, file = _create(path)
        file.close()
        partial.unlink(missing_ok=True)
    except PermissionError as reason:
        raise StorageError(
            f"{path} cannot be written: no permission in the folder {path.parent}; name another"
        ) from reason
    except OSError as reason:
        raise StorageError(f"{path} cannot be written: {reason.strerror or reason}; name another") from reason


def target(path: str | Path) -> Path:
    """The path behind links: a link stays, and what it points to is replaced."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as reason:
        raise StorageError(f"{str(path)!r} is not a path: {reason}") from reason


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """An empty file to write to; when the block ends without an error, it has replaced the path, on the disk too."""
    _remove_left(path)
    partial, file = _create(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is not None:
                partial.replace(path)  # while it is locked, or another process might remove it
        if fcntl is None:
            partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    _flush_folder(path.parent)


def _create(path: Path) -> tuple[Path, BinaryIO]:
    """A new file beside the path, locked, and its name."""
    while True:
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
        file = partial.open("xb")
        if fcntl is None:
            return partial, file
        with suppress(OSError):  # on a disk without locks nothing is removed either
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return partial, file
        file.close()  # removed by another process before it was locked


def _remove_left(path: Path) -> None:
    """Remove partial files that killed processes left for this path."""
    prefix = f".{path.name}."
    for name in os.listdir(path.parent):  # noqa: PTH208 (names are compared, not paths)
        if name.startswith(prefix) and _TOKEN.fullmatch(name, len(prefix)):
            partial = path.parent / name
            with suppress(OSError):
                if fcntl is None:
                    partial.unlink()
                    continue
                with partial.open("r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer runs
                    partial.unlink()


def _flush_folder(folder: Path) -> None:
    """Bring a renaming to the disk; some network disks cannot, and the file is whole all the same."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
