"""One writer per path: a lock that names its owner, and that the kernel releases when the owner's process ends.

On Windows and on disks without locks there is none, which is logged.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EAGAIN
from pathlib import Path

from slu.artifacts.replacing import target
from slu.errors import StorageError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

log = logging.getLogger(__name__)

_MARK = "slu: "  # how the text of a lock begins, so that no other file of this name is taken for one
_LONGEST = 400

_held: set[int] = set()  # descriptors of the locks of this process


def _forget_after_fork() -> None:
    """A worker of a loader has copies of the locks, and would hold them when the process that it is of was killed."""
    while _held:
        _close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


@contextmanager
def locked(path: str | Path, work: str) -> Iterator[None]:
    """Inside of the block no other process or thread can lock the same path; one that was killed holds no lock.

    Args:
        path: What is written; the lock is on `<path>.lock` beside it, which is removed at the end.
        work: What it is written for, which the lock says to others.

    Raises:
        StorageError: Another holds the lock, or there is a file of its name that is no lock.
    """
    path = target(path)
    lock = path.with_name(f"{path.name}.lock")
    owner = os.getpid()
    descriptors: list[int] = []
    try:  # from before it is acquired: Ctrl-C may come at once after
        _acquire(lock, path, descriptors)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        text = f"{_MARK}{work}, process {owner} on {socket.gethostname()}, since {since}"
        for descriptor in descriptors:
            with suppress(OSError):  # of a full disk: the lock holds without a name
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, text.encode(errors="replace")[:_LONGEST], 0)
        yield
    finally:
        if os.getpid() == owner:  # not a fork of it, in which the lock was closed
            for descriptor in descriptors:
                with suppress(OSError):
                    lock.unlink()  # before it is released, or that of the next owner would be removed
                _held.discard(descriptor)
                _close(descriptor)


def _acquire(lock: Path, path: Path, descriptors: list[int]) -> None:
    """Add the descriptor of the lock; none where there are no locks."""
    if fcntl is None:
        log.warning("there are no file locks on this system: no other fit may write %s meanwhile", path)
        return
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as reason:
            raise StorageError(
                f"the lock {lock} cannot be opened: {reason.strerror}; remove it if nobody writes {path}, or name "
                "another file"
            ) from reason
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _no_lock(lock, path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as reason:
                if reason.errno not in (EACCES, EAGAIN):
                    log.warning(
                        "%s has no locks (%s): no other fit may write %s meanwhile", lock, reason.strerror, path
                    )
                    return
                raise StorageError(
                    f"{path} is being written by {_owner(descriptor) or 'another process'}. Two writers would "
                    "overwrite each other: wait for it, end it, or name another file"
                ) from None
            if not _is_at(lock, descriptor):  # removed by its owner before it was locked here
                continue
            if _owner(descriptor) is None:
                raise _no_lock(lock, path)
            descriptors.append(descriptor)
            _held.add(descriptor)
            return
        except OSError as reason:
            raise StorageError(
                f"the lock {lock} cannot be read: {reason.strerror}; look after the disk, or name another file"
            ) from reason
        finally:
            if descriptor not in descriptors:
                _close(descriptor)


def _close(descriptor: int) -> None:
    with suppress(OSError):  # which closes it all the same
        os.close(descriptor)


def _no_lock(lock: Path, path: Path) -> StorageError:
    return StorageError(f"{lock} is there and is no lock of slu; name another file than {path}, or move it away")


def _is_at(lock: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(lock))
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> str | None:
    """What a lock says, empty if it was not written yet; None of a file that is no lock."""
    text = os.pread(descriptor, _LONGEST, 0).decode(errors="replace")
    if text and not text.startswith(_MARK):
        return None
    return "".join(each for each in text.removeprefix(_MARK) if each.isprintable())
