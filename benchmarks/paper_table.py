"""The paper's FashionMNIST block at 3p: LeNet against MNIST and twelve rotations, every method.

    SLU_DATA=... python -m benchmarks.paper_table --weights FOLDER [--seeds 1 2 3] [--points 2000] [--json FILE]
    ... --methods Diagonal --probes 1000 --points 500     # only methods whose names contain a word

Trains one LeNet a seed by the paper's recipe (50 epochs of Adam on 54,000 images; about seven
minutes each on one core) unless FOLDER holds it already, fits every method as it should be and, in rows
marked "as run", with the named options that do what the paper's authors ran, and prints AUROC,
mean and standard deviation over seeds, beside the paper's. An ensemble has the members seed,
seed + 1, seed + 2. Hutchinson's estimate of the diagonal, a pass a probe, is made for --probes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.images import images, labels, rotated
from slu import (
    SCOD,
    SLU,
    SWAG,
    DeepEnsemble,
    DiagonalLaplace,
    Energy,
    Entropy,
    LocalEnsemble,
    LowRankLaplace,
    MaxLogit,
    MaxProbability,
    compare,
)
from slu.experiments.models import LeNet
from slu.experiments.randomness import seeded
from slu.experiments.training import accuracy, train
from slu.storage import read, write

ANGLES = range(15, 181, 15)
EPOCHS, BATCH = 50, 128
SPLIT_SEED, KEPT = 0, 54_000
KIND = "classification"

# The paper's Table: AUROC and its standard deviation over ten networks, against MNIST and the mean over rotations.
PAPER = {
    "SLU": (0.94, 0.01, 0.74, 0.03),
    "LowRankLaplace": (0.80, 0.03, 0.70, 0.03),
    "DiagonalLaplace": (0.68, 0.07, 0.61, 0.05),
    "LocalEnsemble": (0.80, 0.03, 0.70, 0.03),
    "LocalEnsemble, Hessian": (0.80, 0.03, 0.70, 0.03),
    "SCOD": (0.84, 0.02, 0.71, 0.03),
    "SWAG": (0.75, 0.02, 0.70, 0.04),
    "DeepEnsemble": (0.92, 0.01, 0.79, 0.02),
}

Maker = Callable[[nn.Module], Any]


def on_points(seed: int) -> dict[str, Maker]:
    """Methods that are fitted on a subsample, read as the variance of the outputs."""

    def of(kind: Any, **settings: Any) -> Maker:
        return lambda model: kind(model, KIND, seed=seed, **settings)

    authors: dict[str, Any] = {"rank": 2, "steps": 3}
    paper_prior: dict[str, Any] = {"prior_precision": "paper"}
    return {
        "SLU": of(SLU, rank=132, sketch_size=1000),
        "SLU as run": of(SLU, rank=132, sketch_size=1000, sketch="srft", keep=0.9, estimator="difference"),
        "LowRankLaplace": of(LowRankLaplace, rank=3),
        "LowRankLaplace as run": of(LowRankLaplace, **authors, **paper_prior),
        "DiagonalLaplace": of(DiagonalLaplace),
        "DiagonalLaplace, paper's prior": of(DiagonalLaplace, **paper_prior),
        "LocalEnsemble": of(LocalEnsemble, rank=3),
        "LocalEnsemble as run": of(LocalEnsemble, **authors),
        "LocalEnsemble, converged": of(LocalEnsemble, rank=3, steps=20),
        "LocalEnsemble, Hessian": of(LocalEnsemble, rank=3, curvature="hessian"),
        "LocalEnsemble, Hessian as run": of(LocalEnsemble, **authors, curvature="hessian", negative="free"),
        "SCOD": of(SCOD, rank=3),
        "SCOD as run": of(SCOD, rank=3, factor="hessian", **paper_prior),
    }


def on_everything(seed: int) -> dict[str, Maker]:
    """Methods that go on training, on all the data."""
    authors: dict[str, Any] = {
        "momentum": 0.99,
        "deviations": "running",
        "refit_batchnorm": False,
        "collections": 3,
        "collect_every": 1000,
    }
    return {
        "SWAG": lambda model: SWAG(model, KIND, rank=3, seed=seed),
        "SWAG as run": lambda model: SWAG(model, KIND, rank=3, seed=seed, **authors),
    }


def hutchinson(seed: int, probes: int) -> dict[str, Maker]:
    """The diagonal as the authors estimate it, and the same estimate without their shift."""
    settings: dict[str, Any] = {"diagonal": "hutchinson", "probes": probes, "prior_precision": "paper", "seed": seed}
    return {
        f"DiagonalLaplace as run, {probes} probes": lambda m: DiagonalLaplace(m, KIND, negative="shift", **settings),
        f"DiagonalLaplace, {probes} probes, clipped": lambda m: DiagonalLaplace(m, KIND, **settings),
    }


def network(seed: int, folder: Path, inputs: Tensor, targets: Tensor) -> nn.Module:
    """One trained LeNet, from the folder or trained now."""
    path = folder / f"lenet-{seed}.safetensors"
    model = seeded(LeNet, seed)
    if path.exists():
        model.load_state_dict(read(path)[1])
        return model.eval()
    Console().print(f"training network {seed}: {EPOCHS} epochs")
    train(model, inputs, targets, epochs=EPOCHS, batch_size=BATCH, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    write(path, model.state_dict(), {"epochs": EPOCHS, "seed": seed, "data": "fmnist"})
    return model


def areas(board: Any) -> dict[str, tuple[float, float]]:
    """(MNIST, mean over rotations) by label; a method that failed has NaN."""
    found = {}
    for row in board:
        values = {name: judged.auroc.value for name, judged in row.judgements.items()}
        turned = [values.get(f"rotated {angle}", float("nan")) for angle in ANGLES]
        found[row.label] = (values.get("MNIST", float("nan")), mean(turned))
    return found


def run(models: Sequence[nn.Module], seed: int, data: dict[str, Any], options: Any) -> dict[str, Any]:
    """AUROC of every method on the first of the models."""
    model, probes = models[0], options.probes

    def judge(made: dict[str, Any], **settings: Any) -> Any:
        chosen = {name: make for name, make in made.items() if any(word in name for word in options.methods)}
        if not chosen:
            return []
        shown = {"inside": data["inside"], "outside": data["outside"], "resamples": 200, "progress": True}
        board = compare(chosen, **shown, **settings)
        print(board)
        return board

    made = {name: partial(make, model) for name, make in on_points(seed).items()}
    if probes:
        made |= {name: partial(make, model) for name, make in hutchinson(seed, probes).items()}
    made |= {"DeepEnsemble": lambda: DeepEnsemble(models, KIND)}
    made |= {kind.__name__: partial(kind, model) for kind in (MaxLogit, MaxProbability, Entropy, Energy)}
    moved = {name: partial(make, model) for name, make in on_everything(seed).items()}
    own = {"SCOD, its own reading": lambda: SCOD(model, KIND, rank=3, seed=seed)}
    boards = [
        judge(made, train=data["points"], readings=["variance"]),
        judge(moved, train=data["everything"]),
        judge(own, train=data["points"]),
    ]
    return {label: area for board in boards for label, area in areas(board).items()}


def tabulate(found: Sequence[dict[str, tuple[float, float]]], title: str) -> Table:
    table = Table(title=title)
    for heading in ("method", "MNIST", "paper", "rotations, mean", "paper"):
        table.add_column(heading, no_wrap=True)
    for label in found[0]:
        ours = [[each[label][place] for each in found if label in each] for place in (0, 1)]
        cells = [f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "") for values in ours]
        plain = label.removesuffix(", variance").partition(" as run")[0]
        name = plain if plain in PAPER else None
        paper = PAPER[name] if name else None
        shown = [f"{paper[at]:.2f} ± {paper[at + 1]:.2f}" if paper else "" for at in (0, 2)]
        table.add_row(label, cells[0], shown[0], cells[1], shown[1])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--probes", type=int, default=0, help="of Hutchinson's estimate; each is a pass; 0 for none")
    parser.add_argument("--methods", nargs="+", default=[""], metavar="WORD")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kept = torch.randperm(60_000, generator=torch.Generator().manual_seed(SPLIT_SEED))[:KEPT]
    inputs, targets = images("fmnist", "train")[kept], labels("fmnist", "train")[kept]
    test, test_targets = images("fmnist", "t10k"), labels("fmnist", "t10k")
    inside = test[: options.queries]
    turned = {f"rotated {angle}": rotated(inside, angle) for angle in ANGLES}
    outside = {"MNIST": images("mnist", "t10k")[: options.queries]} | turned
    data = {
        "points": list(zip(inputs.split(250), targets.split(250), strict=True))[: -(-options.points // 250)],
        "everything": list(zip(inputs.split(BATCH), targets.split(BATCH), strict=True)),
        "inside": list(inside.split(100)),
        "outside": {name: list(pictures.split(100)) for name, pictures in outside.items()},
    }
    console = Console(width=140)
    found = []
    for seed in options.seeds:
        models = [network(seed + step, options.weights, inputs, targets) for step in range(3)]
        console.print(f"network {seed}: test accuracy {accuracy(models[0], test, test_targets):.3f}")
        found.append(run(models, seed, data, options))
        if options.json:
            options.json.write_text(json.dumps(dict(zip(options.seeds, found, strict=False)), indent=1))
    console.print(tabulate(found, f"AUROC over networks {options.seeds}, n = {options.points}, 3p"))


if __name__ == "__main__":
    main()
