"""A bar with the remaining time, where somebody is looking."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """Progress of one piece of work on stderr: in a terminal by default, never in a pipe.

    Args:
        name: What is being done.
        total: How many steps there are; None if unknown.
        show: True and False decide; None looks whether stderr is a terminal.
        done: Steps that an earlier run did.
    """

    def __init__(self, name: str, total: int | None, show: bool | None = None, done: int = 0) -> None:
        self._progress: Progress | None = None
        if sys.stderr.isatty() if show is None else show:
            columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            told = TextColumn("{task.fields[told]}")
            self._progress = Progress(*columns, told, console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(name, total=total, completed=done, told="")

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def advance(self, told: str = "") -> None:
        """One step is done; what is told stands behind the bar."""
        if self._progress is not None:
            self._progress.update(self._task, advance=1, told=told)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
