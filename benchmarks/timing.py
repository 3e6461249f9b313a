"""Times as ratios taken in turns, so that the load of the machine divides out; peaks of memory; fresh processes."""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

# One arena, and everything above 64 KB straight from and back to the kernel: otherwise glibc keeps freed memory, and
# the peak shows what was freed before as well. It makes allocations slower, so times are taken without it.
_FOR_PEAKS = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@dataclass(frozen=True)
class Ratio:
    """The median of paired ratios and the range of their middle half."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        """Of one ratio per round."""
        ordered = sorted(ratios)
        quarter = len(ordered) // 4
        return cls(statistics.median(ordered), ordered[quarter], ordered[-1 - quarter])

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(work: Callable[[], object], unit: Callable[[], object], *, rounds: int = 15, least: float = 0.02) -> Ratio:
    """How many units a piece of work takes: both are run in turns, warmed up first.

    Each is repeated within a round until it takes `least` seconds, so that short calls are not
    measured in ticks of the clock.
    """
    return Ratio.of(ratios([(work, unit)], rounds=rounds, least=least)[0])


def ratios(
    works: Sequence[tuple[Callable[[], object], Callable[[], object]]], *, rounds: int, least: float = 0.02
) -> list[list[float]]:
    """The same for several pieces of work, each with its unit, all run in turns: by work its ratio in every round."""
    counts = [(_repeats(work, least), _repeats(unit, least)) for work, unit in works]
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for own, (work, unit), (times, of_unit) in zip(taken, works, counts, strict=True):
            own.append(seconds(work, times) / seconds(unit, of_unit))
    return taken


def seconds(task: Callable[[], object], count: int = 1) -> float:
    """Seconds per call, by the clock that `clock_name` names."""
    clock = _clock()
    begun = clock()
    for _ in range(count):
        task()
    return (clock() - begun) / count


def clock_name() -> str:
    """Process time with one thread, which other processes hardly change; with more it would add the threads up."""
    return "process time" if torch.get_num_threads() == 1 else "wall time"


def _clock() -> Callable[[], float]:
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def _repeats(task: Callable[[], object], least: float) -> int:
    task()
    return max(1, round(least / max(seconds(task), 1e-7)))


def status(field: str) -> int:
    """Bytes of VmRSS (now) or VmHWM (the most since the last reset) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"no {field} in /proc/self/status; peaks can be measured on Linux only")


def reset_peak() -> int:
    """Bytes held now; the high-water mark starts again from here."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def fresh(
    module: str, what: str, threads: int = 1, *, peaks: bool = False, limit: float | None = None, **arguments: Any
) -> Any:
    """What a function of a module's table MEASURES returns, run in a fresh process with that many threads.

    Returns:
        Its result; {"failed": last line of its errors} where the process fails or takes longer than `limit` seconds.
    """
    command = [sys.executable, "-m", module, json.dumps({"what": what, "threads": threads, **arguments})]
    pinned = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    # On a shared machine threads that spin while they wait for each other take a hundred times as long.
    waiting = {"OMP_WAIT_POLICY": "passive"}
    environment = os.environ | waiting | pinned | (_FOR_PEAKS if peaks else {})
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {limit:.0f} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"failed": lines[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def serve(measures: Mapping[str, Callable[..., Any]]) -> None:
    """The other side of `fresh`: run what the command line asks for and print its result as JSON."""
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(asked.pop("threads"))
    torch.manual_seed(0)
    print(json.dumps(measures[asked.pop("what")](**asked)))
