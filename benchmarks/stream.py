"""One pass over the data: fits in units of forward + backward over the same points and against Lanczos, exact
queries in forward passes, and how much of the exact eigenspace each solver finds.

    python -m benchmarks stream              prints
    python -m benchmarks.stream FILE.json    also writes the numbers
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.core import forward_backward
from benchmarks.layers import Encoder
from benchmarks.timing import Ratio, ratio
from slu import SLU, Stream
from slu.cli.demo_steps import DemoSettings, prepare
from slu.curvature import RootRows
from slu.gradients import Network, Rows
from slu.likelihoods import resolve
from slu.parameters import select
from slu_experiments.models import LeNet, ResNet

RANK, SIZE, QUERIES, TOKENS = 120, 1000, 32, 128
SKETCHES = ("shift", "block_srft")


def networks() -> dict[str, tuple[nn.Module, Tensor, int]]:
    """Networks with random weights, as many inputs as a fit reads, and the batch they come in."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        wide = nn.Sequential(nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))
        return {
            "LeNet": (LeNet(), torch.randn(1024, 1, 28, 28), 128),
            "ResNet": (ResNet(), torch.randn(512, 3, 32, 32), 128),
            "MLP of 20M": (wide, torch.randn(256, 784), 128),
            f"encoder of 10M, {TOKENS} tokens": (Encoder(640), torch.randint(100, (128, TOKENS)), 32),
        }


def method(model: nn.Module, sketch: str, **settings: Any) -> SLU:
    """SLU of the sizes measured here; a scale would add a pass to every fit."""
    paper = {"scale": None, "ridge": 0.0}
    return SLU(model, "classification", rank=RANK, sketch_size=SIZE, sketch=sketch, **paper, **settings)


def measure(name: str, model: nn.Module, inputs: Tensor, batch: int) -> dict[str, Ratio]:
    """Ratios by what was measured."""
    model.eval()
    batches = list(inputs.split(batch))
    some = inputs[:QUERIES]
    unit = forward_backward(model, batches)

    def forward() -> None:
        with torch.no_grad():
            model(some)

    found: dict[str, Ratio] = {}
    small = name in ("LeNet", "ResNet")
    for sketch in SKETCHES if small else SKETCHES[:1]:
        stream = method(model, sketch, solver="stream")
        found[f"fit, {sketch}"] = ratio(lambda stream=stream: stream.fit(batches, calibration=False), unit, rounds=5)
        if small:
            score = stream.fit(batches, calibration=False)
            found[f"query, {sketch}"] = ratio(lambda score=score: score(some, reading="variance"), forward, rounds=5)
    if name == "LeNet":
        lanczos, stream = (method(model, SKETCHES[0], solver=solver) for solver in ("lanczos", "stream"))
        found["Lanczos"] = ratio(
            lambda: lanczos.fit(batches, calibration=False), lambda: stream.fit(batches, calibration=False), rounds=1
        )
    return found


def captured(points: int = 200, rank: int = 60) -> dict[str, float]:
    """Share of the exact leading eigenspace of a digits network's G that each solver's basis holds."""
    trained = prepare(DemoSettings(rank=None, sketch_size=None, seed=0, epochs=60))
    model, inputs = trained.model, trained.data.train.images[:points]
    network = Network(model, select(model))
    rows: list[Tensor] = []

    def take(found: Rows) -> None:
        whole = torch.empty(*found.shape, network.selection.count)
        for start, values in found.pieces:
            whole[..., start : start + values.shape[-1]] = values
        rows.append(whole.flatten(0, 1))

    RootRows(network, resolve("classification"), inputs).feed(take)
    every = torch.cat(rows)
    values, vectors = torch.linalg.eigh((every @ every.T).double())
    exact = (vectors[:, -rank:] / values[-rank:].sqrt()).float().T @ every
    shares = {}
    for name, settings in {
        "Lanczos": {"solver": "lanczos"},
        "stream, one mixture": {"solver": "stream"},
        "stream, ten mixtures": {"solver": Stream(labels_per_point=10)},
        "stream, all labels": {"solver": Stream(labels_per_point="all")},
    }.items():
        found = []
        for seed in range(3):
            sizes = {"rank": rank, "sketch_size": SIZE, "scale": None, "ridge": 0.0}
            score = SLU(model, "classification", seed=seed, **sizes, **settings).fit(inputs, calibration=False)
            seen = torch.zeros(rank, SIZE)
            score.sketch.accumulate(0, exact, seen)
            basis = torch.linalg.qr(seen.T).Q
            found.append(float((score.state.subspace.basis @ basis).square().sum()) / rank)
        shares[name] = sum(found) / len(found)
    return shares


def main(path: Path | None = None) -> None:
    title = f"One pass: k = {RANK}, s = {SIZE}, one gradient a point; queries t = 10, batch {QUERIES}"
    console = Console(width=140)
    console.print(f"{title}; median and middle half of ratios in one run")
    stored: dict[str, Any] = {}
    for name, (model, inputs, batch) in networks().items():
        label = f"{name}, p = {sum(each.numel() for each in model.parameters()):,}"
        found = measure(name, model, inputs, batch)
        table = Table(title=label, title_justify="left")
        for heading in ("what", "in units of", "ratio", "aim"):
            table.add_column(heading, min_width=20)
        for what, cost in found.items():
            unit, aim = UNITS[what.partition(",")[0]]
            table.add_row(what, unit, str(cost), aim)
        console.print(table)
        stored[label] = {what: asdict(cost) for what, cost in found.items()}
    shares = captured()
    console.print("share of the exact top-60 eigenspace (digits, 200 points, three seeds):")
    console.print("  ".join(f"{name} {share:.3f}" for name, share in shares.items()))
    if path is not None:
        path.write_text(json.dumps({"ratios": stored, "captured": shares}, indent=1))


UNITS = {
    "fit": ("forward + backward, same points", "2"),
    "query": ("forward pass of its batch", "30"),
    "Lanczos": ("the stream's fit", "at least 50"),
}

if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
