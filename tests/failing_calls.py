"""Makes one system call of slu's files fail, or end the process: the n-th that they make, with an error of choice.

The calls are those of Python: functions of `os`, `fcntl.flock`, `open`, and the methods of files that were opened. Only
calls from slu/artifacts count, so that what Python or torch do meanwhile changes no number.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FUNCTIONS = (
    "open", "close", "replace", "rename", "link", "unlink", "remove", "fsync", "stat", "lstat", "fstat", "listdir",
    "scandir", "fchmod", "chmod", "fchown", "mkdir", "ftruncate",
)  # fmt: skip
METHODS = ("write", "read", "readinto", "flush", "close")
ERRORS = ("EIO", "ENOSPC", "EACCES", "EINTR", "EMFILE", "ENOENT", "EROFS", "EDQUOT")
KILL = "kill"
_DEEPEST = 8  # frames between a call and slu/artifacts, which pathlib and posixpath fill


class Calls:
    """The calls made so far, by name and line; the one at `at` fails with the error of this name, or kills."""

    def __init__(self, at: int | None, error: str) -> None:
        self.names: list[str] = []
        self.lines: list[str] = []
        self._at, self._error = at, error

    def count(self, name: str) -> None:
        line = _line_of_ours()
        if line is None:
            return
        self.names.append(name)
        self.lines.append(line)
        if len(self.names) - 1 != self._at:
            return
        if self._error == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, self._error)
        raise OSError(number, os.strerror(number))


class _File:
    """A file whose methods count; closing it closes the file also where it fails, as the kernel does."""

    def __init__(self, file: Any, calls: Calls) -> None:
        self._file, self._calls = file, calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._file, name)
        if name not in METHODS:
            return method

        def counted(*arguments: Any) -> Any:
            if name == "close":
                method()
            self._calls.count(f"file.{name}")
            return method(*arguments)

        return counted

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def failing(at: int | None = None, error: str = "EIO") -> Iterator[Calls]:
    """Within the block the call at this place fails; without a place the calls are only counted."""
    calls = Calls(at, error)
    places: list[tuple[Any, str]] = [(os, name) for name in FUNCTIONS]
    places += [(fcntl, "flock"), (builtins, "open"), (io, "open")]
    real = [(owner, name, getattr(owner, name)) for owner, name in places]

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.count(name)
            result = function(*arguments, **options)
            return _File(result, calls) if name == "open a file" and _line_of_ours() else result

        return call

    try:
        for owner, name, function in real:
            setattr(owner, name, counted(name if owner in (os, fcntl) else "open a file", function))
        yield calls
    finally:
        for owner, name, function in real:
            setattr(owner, name, function)


def _line_of_ours() -> str | None:
    """The line of slu/artifacts that made a call."""
    frame = sys._getframe(2)
    for _ in range(_DEEPEST):
        if frame is None:
            return None
        if "/slu/artifacts/" in frame.f_code.co_filename:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None
