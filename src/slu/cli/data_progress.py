"""The bar of a download, a step a megabyte."""

from __future__ import annotations

from types import TracebackType

from slu.progress import Bar

_MEGABYTE = 1 << 20


class Bars:
    """One bar after the other, as file follows file; shown in a terminal alone."""

    def __init__(self) -> None:
        self._file, self._bar, self._steps = "", None, 0

    def __enter__(self) -> Bars:
        return self

    def __call__(self, file: str, done: int, total: int | None) -> None:
        """So many bytes of a file are there."""
        steps = done // _MEGABYTE
        if file != self._file:
            self._close()
            whole = None if total is None else -(-total // _MEGABYTE)
            self._file, self._bar, self._steps = file, Bar(f"{file}, MB", whole, done=steps).__enter__(), steps
        while self._bar is not None and self._steps < steps:
            self._bar.advance()
            self._steps += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None
