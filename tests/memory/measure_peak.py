"""Run by test_peak.py in a fresh process: the peak memory of a fit by Lanczos and of a query, as JSON.

A process that has done other things keeps freed memory, thread pools and FFT plans, and its peak
is that of everything before. So: one process a measurement; a small model of the same kind first,
which brings all of the above; then the kernel's high-water mark is reset and read afterwards.
"""

import gc
import json
import sys
from pathlib import Path

import torch
from torch import nn

from slu import SLU


def mlp(width: int, outputs: int) -> nn.Sequential:
    layers = [nn.Linear(100, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs))


def status(field: str) -> int:
    """Bytes of VmRSS (now) or VmHWM (the most since the last reset)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"no {field} in /proc/self/status")


def reset_peak() -> int:
    """Bytes held now; the high-water mark starts again from here."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def main(width: int, outputs: int, rank: int, size: int, hold: int) -> None:
    """`hold` vectors of length p are held besides, which the measurement must see: the control."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = [(torch.randn(2, 100),), (torch.randn(2, 100),)]
    # Wide enough for whole blocks of the same sketch, so that the transforms' plans are warm as well.
    paper = {"solver": "lanczos", "scale": None, "ridge": 0.0}
    warm = SLU(mlp(200, outputs), "classification", rank=2, sketch_size=size, **paper).fit(data)
    warm(data[0][0][:1])
    del warm

    model = mlp(width, outputs)
    p = sum(value.numel() for value in model.parameters())
    method = SLU(model, "classification", rank=rank, sketch_size=size, **paper)
    before = reset_peak()
    held = [torch.ones(p) for _ in range(hold)]
    score = method.fit(data)
    fit_peak = status("VmHWM")
    del held

    kept = reset_peak()
    score(data[0][0][:1])
    query_peak = status("VmHWM")
    print(
        json.dumps(
            {
                "p": p,
                "fit": (fit_peak - before) / 4,
                "kept": (kept - before) / 4,
                "query": (query_peak - before) / 4,
                "state": score.sketch.state_bytes / 4,
                "rank": score.diagnostics.effective_rank,
                "kind": score.sketch.spec.kind,
            }
        )
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
