"""A file replaces another only when it is complete, also where processes are killed or write at the same time.

A new file is written beside the path, under a unique name, and renamed at the end. Its writer holds a lock on it,
which the kernel releases when the process ends; so a file of this kind without a lock was left by a process that
was killed, and is removed.
"""

from __future__ import annotations

import os
import re
import stat
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
        _discard(*_create(path))
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
def replacing(path: Path, previous: Path | None = None) -> Iterator[BinaryIO]:
    """An empty file to write to; when the block ends without an error, it has replaced the path, on the disk too.

    It has the mode of the file that it replaces, which is kept at `previous` if that is given. After an error the
    path is what it was.

    Raises:
        StorageError: The file that was there could be moved to `previous`, but neither be replaced nor be moved back.
    """
    _remove_left(path)
    partial, file = _create(path, previous)
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        if fcntl is None:
            file.close()
        _rename(partial, path, previous)  # while it is locked, or another process might remove it
    finally:
        _discard(partial, file)
    _flush_folder(path.parent)


def _rename(partial: Path, path: Path, previous: Path | None) -> None:
    if previous is None or not os.path.lexists(path):
        partial.replace(path)
        return
    path.replace(previous)
    try:
        partial.replace(path)
    except OSError as reason:
        try:
            previous.replace(path)
        except OSError:
            raise StorageError(
                f"{path} could not be written: {reason.strerror}. The file that was there is {previous} now"
            ) from reason
        raise


def _create(path: Path, previous: Path | None = None) -> tuple[Path, BinaryIO]:
    """A new file beside the path, locked, and its name."""
    replaced = _replaced(path, previous)
    mode = 0o666 if replaced is None else 0o600  # in place of one that others may not read it is never theirs
    while True:
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
        file = open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
        if fcntl is None:
            return partial, file
        with suppress(OSError):  # on a disk without locks nothing is removed either
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            if replaced is not None:
                _take_mode(file.fileno(), replaced)
            if os.fstat(file.fileno()).st_nlink:
                return partial, file
        except BaseException:
            _discard(partial, file)
            raise
        file.close()  # removed by another process before it was locked


def _replaced(path: Path, previous: Path | None) -> os.stat_result | None:
    """The file whose place a new one takes; the previous one where a process was killed between two renamings."""
    for candidate in (path, previous):
        with suppress(FileNotFoundError):
            if candidate is not None:
                return candidate.stat()
    return None


def _take_mode(descriptor: int, replaced: os.stat_result) -> None:
    """Give a file the owner, group and mode of another; without its group, none of the rights of the group.

    A disk without modes keeps the narrow one that it was made with.
    """
    mode = stat.S_IMODE(replaced.st_mode) & 0o777
    with suppress(OSError):
        os.fchown(descriptor, -1, replaced.st_gid)
        os.fchown(descriptor, replaced.st_uid, -1)
    with suppress(OSError):
        same_group = os.fstat(descriptor).st_gid == replaced.st_gid
        os.fchmod(descriptor, mode if same_group else mode & ~0o070)


def _discard(partial: Path, file: BinaryIO) -> None:
    """Close and remove a file, unless it was renamed; what fails here changes neither its content nor its name."""
    with suppress(OSError):
        file.close()
    with suppress(OSError):
        partial.unlink(missing_ok=True)


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
