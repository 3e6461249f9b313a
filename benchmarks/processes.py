"""How a fit by 1, 2 and 4 processes scales on this machine, what it sends, and how long it waits for it.

`python -m benchmarks processes` starts torchrun for every number of processes, one thread each. Strong scaling: the
same points for all; weak: as many for each. More processes than cores share them, and are there for what is sent.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from statistics import median
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from slu import SLU

PROCESSES = (1, 2, 4)
POINTS = 4096
ROUNDS = 5
_TALKED = re.compile(r"sent ([0-9]+) bytes .* spent ([0-9.]+) s of")


def network() -> nn.Module:
    """A LeNet of 44,426 parameters for images of 28 × 28."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(400, 84), nn.Tanh(), nn.Linear(84, 84), nn.Tanh(), nn.Linear(84, 10),
    )  # fmt: skip


class _Heard(logging.Handler):
    """What the processes say that they have sent."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.sent, self.seconds = 0, 0.0

    def emit(self, record: logging.LogRecord) -> None:
        found = _TALKED.search(record.getMessage())
        if found:
            self.sent, self.seconds = int(found[1]), float(found[2])


def work(points: int, solver: str) -> None:
    """Of one process: fit a few times, and let the first print."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    size = distributed.get_world_size()
    heard, log = _Heard(), logging.getLogger("slu.processes")
    log.addHandler(heard)
    log.setLevel(logging.INFO)
    data = TensorDataset(torch.randn(points, 1, 28, 28, generator=torch.Generator().manual_seed(1)))
    loader = DataLoader(data, 64, sampler=DistributedSampler(data, shuffle=False))
    settings: dict[str, Any] = {"rank": 100} if solver == "stream" else {"rank": 10, "solver": "lanczos"}
    method, seconds, talked = SLU(network(), "classification", **settings), [], []
    for _ in range(ROUNDS + 1):  # the first warms up
        distributed.barrier()
        begun = time.perf_counter()
        method.fit(loader)
        seconds.append(time.perf_counter() - begun)
        talked.append(heard.seconds)
    if distributed.get_rank() == 0:
        spec = method.settings
        told = {"seconds": seconds[1:], "talked": talked[1:], "sent": heard.sent, "size": size, "points": points}
        print(json.dumps(told | {"sum": 4 * spec.sketch.size * 2 * spec.rank, "p": spec.network.selection.count}))
    distributed.destroy_process_group()


def main() -> None:
    """Print a table: ratios to one process, and bytes."""
    print(f"{os.cpu_count()} cores; medians of {ROUNDS} fits, smallest and largest; one thread per process\n")
    for title, points, solver in (
        ("strong", lambda _: POINTS, "stream"), ("weak", lambda size: POINTS // 4 * size, "stream"),
        ("strong", lambda _: POINTS // 4, "lanczos"),
    ):  # fmt: skip
        print(f"{title} scaling, {solver}")
        one = None
        for size in PROCESSES:
            told = _run(size, points(size), solver)
            times = told["seconds"]
            one = one or median(times)
            spread = f"{min(times) / one:.2f} to {max(times) / one:.2f}"
            print(
                f"  {size} processes, {told['points']} points: {median(times) / one:.2f} times one's time ({spread}), "
                f"{told['sent'] / 1e6:.2f} MB given to collectives ({told['sent'] / told['sum']:.2f} of s (k + o)), "
                f"{median(told['talked']) / median(times):.0%} of the time in them"
            )


def _run(size: int, points: int, solver: str) -> dict[str, Any]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    done = subprocess.run(
        [*launch, "-m", "benchmarks.processes", str(points), solver],
        env={**os.environ, **single}, stdout=subprocess.PIPE, check=True, text=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2])
