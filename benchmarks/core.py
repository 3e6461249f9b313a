"""Products with the curvature, Lanczos steps and fits, and how much of the exact eigenspace each solver captures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.measure import train_pass
from benchmarks.networks import SUBJECTS
from benchmarks.timing import ratio
from slu import SLU, Stream
from slu.cli.demo_steps import DemoSettings, prepare
from slu.curvature import Curvature, RootRows
from slu.gradients import Network, Rows
from slu.krylov import low_memory, start_vector
from slu.likelihoods import resolve
from slu.parameters import select
from slu.sketches import SketchSpec, build

POINTS, SIZE, RANK = 1024, 1000, 120
EXACT_POINTS, EXACT_RANK = 200, 60
PAPER: dict[str, Any] = {"scale": None, "ridge": 0.0}


def lanczos_step(operator: Curvature, sketch: SketchSpec) -> Callable[[], None]:
    """One step in the middle of a run, its vector sketched."""
    built, row = build(sketch), torch.zeros(SIZE)
    steps = low_memory(operator, start_vector(operator, 0), 10**6)

    def run() -> None:
        built.accumulate(0, next(steps).vector, row.zero_())

    return run


def captured() -> dict[str, float]:
    """Share of the exact leading eigenspace of a digits network's G that each solver's basis captures."""
    trained = prepare(DemoSettings(rank=None, sketch_size=None, seed=0, epochs=60))
    model, inputs = trained.model, trained.data.train.images[:EXACT_POINTS]
    network = Network(model, select(model))
    chunks: list[Tensor] = []

    def take(rows: Rows) -> None:
        whole = torch.empty(*rows.shape, network.selection.count)
        for start, values in rows.pieces:
            whole[..., start : start + values.shape[-1]] = values
        chunks.append(whole.flatten(0, 1))

    RootRows(network, resolve("classification"), inputs).feed(take)
    every = torch.cat(chunks)
    values, vectors = torch.linalg.eigh((every @ every.T).double())
    exact = (vectors[:, -EXACT_RANK:] / values[-EXACT_RANK:].sqrt()).float().T @ every
    solvers: dict[str, Any] = {
        "Lanczos": "lanczos",
        "stream, one mixture": "stream",
        "stream, ten mixtures": Stream(labels_per_point=10),
        "stream, all labels": Stream(labels_per_point="all"),
    }
    shares = {}
    for name, solver in solvers.items():
        total = 0.0
        for seed in range(3):
            method = SLU(model, "classification", seed=seed, rank=EXACT_RANK, sketch_size=SIZE, solver=solver, **PAPER)
            score = method.fit(inputs, calibration=False)
            seen = torch.zeros(EXACT_RANK, SIZE)
            score.sketch.accumulate(0, exact, seen)
            basis = torch.linalg.qr(seen.T).Q
            total += float((score.state.subspace.basis @ basis).square().sum()) / EXACT_RANK
        shares[name] = total / 3
    return shares


def main() -> None:
    table = Table(title=f"Core: n = {POINTS:,}; median and middle half of ratios in one run")
    for heading in ("what", "in units of", "network", "ratio", "aim"):
        table.add_column(heading)
    for name in ("LeNet", "ResNet 272k"):
        model = SUBJECTS[name].network()
        batches = SUBJECTS[name].batches(POINTS)
        selection = select(model)
        operator = Curvature(Network(model, selection), resolve("classification"), batches)
        vector = start_vector(operator, 1)

        def product(operator: Curvature = operator, vector: Tensor = vector) -> Tensor:
            return operator @ vector

        label = f"{name}, p = {selection.count:,}"
        cost = ratio(product, train_pass(model, batches))
        table.add_row("GGN product", "forward + backward, same data", label, str(cost), "2.0")
        step = lanczos_step(operator, SLU(model, "classification", rank=RANK, sketch_size=SIZE).settings.sketch)
        table.add_row("sketched Lanczos step", "GGN product", label, str(ratio(step, product)), "1.10")
        if name == "LeNet":
            sizes: dict[str, Any] = {**PAPER, "rank": RANK, "sketch_size": SIZE}
            lanczos, stream = (
                partial(SLU(model, "classification", solver=solver, **sizes).fit, batches, calibration=False)
                for solver in ("lanczos", "stream")
            )
            cost = ratio(lanczos, stream, rounds=1)
            table.add_row("fit by Lanczos", "fit by the stream", label, str(cost), "at least 50")
    console = Console(width=120)
    console.print(table)
    title = f"share of the exact top-{EXACT_RANK} eigenspace (digits, {EXACT_POINTS} points, three seeds):"
    console.print(title, "  ".join(f"{name} {share:.3f}" for name, share in captured().items()))
