"""Scripts run by several processes, as `torchrun` starts them, of which nothing is left running in the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

_RESULTS, _MARK = "SLU_TEST_RESULTS", "SLU_TEST_RUN"
_TESTS = Path(__file__).parent

needs_processes = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="ends its processes on Linux only")


class RunError(AssertionError):
    """A run that failed, or took too long; the message has what it printed."""


def tell(result: Any) -> None:
    """In a script: what this process gives back to the test; tensors, numbers, strings, lists and dicts of them."""
    path = Path(os.environ[_RESULTS]) / f"{os.environ['RANK']}.pt"
    torch.save(result, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


@contextmanager
def group(backend: str = "gloo") -> Iterator[int]:
    """In a script: the process group of the run; gives the rank."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(backend)
    try:
        yield torch.distributed.get_rank()
    finally:
        torch.distributed.destroy_process_group()


def run_together(
    script: str | Path, processes: int, *arguments: object, seconds: float = 90, check: bool = True
) -> list[Any]:
    """Run a script by several processes of one thread each; what every one gave to `tell`, by rank.

    Args:
        script: Its text, or the path of a file.
        processes: How many.
        arguments: Of the script, as strings in its `sys.argv`.
        seconds: After which it is ended, with everything it started.
        check: Whether a run that ends with an error fails the test; otherwise None stands for what was not told.

    Raises:
        RunError: The run failed or took longer.
    """
    with started(script, processes, *arguments) as run:
        return run.results(seconds, check=check)


@contextmanager
def started(script: str | Path, processes: int, *arguments: object) -> Iterator[Run]:
    """A run that goes on beside the test, until the end of the block at most."""
    with tempfile.TemporaryDirectory() as folder:
        path = script
        if isinstance(script, str):
            path = Path(folder) / "script.py"
            path.write_text(script, encoding="utf-8")
        run = Run(Path(folder), processes)
        try:
            run.start([str(path), *map(str, arguments)])
            yield run
        finally:
            run.end()


class Run:
    """The processes that a launcher started.

    Attributes:
        folder: Has what they told and printed.
        processes: How many.
    """

    def __init__(self, folder: Path, processes: int) -> None:
        self.folder, self.processes = folder, processes
        self._mark = uuid.uuid4().hex

    def start(self, command: list[str]) -> None:
        """Start the launcher in a session of its own."""
        single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        paths = [str(_TESTS), str(_TESTS.parent), *sys.path]  # what the test itself imports
        own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), _RESULTS: str(self.folder), _MARK: self._mark}
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes)]
        with (self.folder / "output").open("wb") as output:
            self._launcher = subprocess.Popen(
                [sys.executable, *launch, *command], env={**os.environ, **single, **own}, stdout=output,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def results(self, seconds: float, *, check: bool = True) -> list[Any]:
        """What every process told, by rank, once all have ended."""
        try:
            code = self._launcher.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise RunError(f"not done after {seconds} s:\n{self.output}") from None
        if code and check:
            raise RunError(f"ended with code {code}:\n{self.output}")
        return [self.told(rank) for rank in range(self.processes)]

    def told(self, rank: int) -> Any:
        """What a process told so far; None where it has not."""
        path = self.folder / f"{rank}.pt"
        return torch.load(path) if path.exists() else None

    @property
    def output(self) -> str:
        """What all of them printed, its end."""
        path = self.folder / "output"
        return path.read_text(errors="replace")[-8000:] if path.exists() else ""

    def running(self) -> list[int]:
        """Of the run, workers and their children included: each has its mark in its environment."""
        marked = f"{_MARK}={self._mark}".encode()
        own = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # it ended, or belongs to somebody else
                if marked in path.read_bytes():
                    own.append(int(path.parent.name))
        return own

    def end(self) -> None:
        """End every process of the run, also those that the launcher put into sessions of their own."""
        deadline = time.monotonic() + 10
        while (left := self.running()) and time.monotonic() < deadline:
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if hasattr(self, "_launcher"):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._launcher.wait(1)
        if left:
            raise RunError(f"processes {left} cannot be ended")
