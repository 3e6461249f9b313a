"""How the cost of a fit and of a query grows with each letter, one at a time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from slu import SLU

START = {"p": 50_000, "n": 256, "t": 5, "k": 10, "s": 1000}
TRIED = {
    "p": [50_000, 200_000, 800_000],
    "n": [256, 1024, 4096],
    "t": [5, 10, 20],
    "k": [10, 20, 40],
    "s": [1000, 2000, 4000],
}
LARGE = [10**4, 10**5, 10**6, 10**7, 10**8]  # parameters, for the stream alone
SOLVERS = ("stream", "lanczos")


def network(parameters: int, outputs: int) -> nn.Module:
    """A two-layer network of about that many parameters."""
    width = max(1, round(parameters / (64 + outputs + 1)))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, outputs))


def seconds(solver: str, p: int, n: int, t: int, k: int, s: int) -> tuple[float, float]:
    """Medians of three: to fit, and to query 16 inputs."""
    inputs = torch.randn(n, 64, generator=torch.Generator().manual_seed(0))
    method = SLU(
        network(p, t), "classification", rank=k, sketch_size=s, sketch="shift", solver=solver, scale=None, ridge=0.0
    )
    data = list(inputs.split(128))
    score = method.fit(data, calibration=False)
    fitting = _median(lambda: method.fit(data, calibration=False))
    return fitting, _median(lambda: score(inputs[:16], reading="variance"))


def _median(task: Callable[[], object]) -> float:
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        task()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def main() -> None:
    start = ", ".join(f"{letter} = {value:,}" for letter, value in START.items())
    table = Table(title=f"Growth, from {start} (two-layer network): times the cost at the first value")
    for heading in ("solver", "letter", "values", "fit", "query of 16"):
        table.add_column(heading)
    for solver in SOLVERS:
        for letter, values in TRIED.items():
            _add(table, solver, letter, values, [seconds(solver, **(START | {letter: value})) for value in values])
    few = START | {"n": 32}
    _add(table, "stream, n = 32", "p", LARGE, [seconds("stream", **(few | {"p": value})) for value in LARGE])
    Console(width=140).print(table)


def _add(table: Table, solver: str, letter: str, values: list[int], found: list[tuple[float, float]]) -> None:
    fits = "  ".join(f"{fit / found[0][0]:.1f}" for fit, _ in found)
    queries = "  ".join(f"{query / found[0][1]:.1f}" for _, query in found)
    table.add_row(solver, letter, "  ".join(f"{value:,}" for value in values), fits, queries)
