"""LeNet on FashionMNIST: the Lanczos rows of the solver table, on real data.

    SLU_DATA=... python -m benchmarks.fashion [--points 2000] [--epochs 8] [--seed 0] [--check]

Trains a LeNet, fits SLU in several ways on the same points, and prints the AUROC against MNIST
and against rotations by 30 and 90 degrees, beside the exact projection onto the same space. With
--check it runs the two rows that matter and fails unless the sketched score has an AUROC of at
least 0.98 against MNIST, within 0.01 of the exact projection onto the same Lanczos space.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from slu import SLU, Lanczos, SluScore
from slu.comparing.metrics import detect
from slu_experiments.data import open_set, stack
from slu_experiments.models import LeNet
from slu_experiments.training import Recipe, accuracy, train

RANK, SIZE, QUERIES = 132, 1000, 600
WAYS: dict[str, dict[str, Any]] = {
    "exact, high-memory": {"sketch": "identity", "solver": Lanczos(precondition=RANK)},
    "exact, same Lanczos space": {"sketch": "identity"},
    "sketched, every column": {"sketch_size": SIZE, "solver": Lanczos(keep=1.0)},
    "sketched, the authors' 90 %": {"sketch_size": SIZE, "solver": Lanczos(keep=0.9)},
    "sketched, rank revealed": {"sketch_size": SIZE},
    "sketched, 20 steps preconditioned": {"sketch_size": SIZE, "solver": Lanczos(precondition=20)},
}
CHECKED = ("exact, same Lanczos space", "sketched, rank revealed")


def reread(score: SluScore, estimator: str) -> SluScore:
    """The same subspace read with another estimator."""
    return SluScore(dataclasses.replace(score.settings, estimator=estimator), score.sketch, score.state)


def areas(score: SluScore, inside: Tensor, outside: dict[str, Tensor], reading: str = "variance") -> list[float]:
    known = score(list(inside.split(100)), reading=reading)
    return [detect(known, score(list(other.split(100)), reading=reading)).auroc for other in outside.values()]


def text(areas: list[float]) -> str:
    return " / ".join(f"{area:.3f}" for area in areas)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    learned, known = open_set("fmnist", "train"), open_set("fmnist", "test")

    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        model = LeNet()
    train(model, learned, Recipe(epochs=options.epochs), seed=options.seed)
    console = Console(width=130)
    console.print(f"LeNet, {options.epochs} epochs, test accuracy {accuracy(model, known):.3f}")

    others = {"MNIST": "mnist", "rotated 30": "fmnist-rotated-30", "rotated 90": "fmnist-rotated-90"}
    outside = {name: stack(open_set(other, "test"), QUERIES)[0] for name, other in others.items()}
    inside, _ = stack(known, QUERIES)
    points = list(stack(learned, options.points)[0].split(250))

    title = f"k = {RANK}, s = {SIZE}, n = {options.points}; AUROC against {' / '.join(outside)}"
    table = Table(title=title)
    for heading in ("basis", "seconds", "rank", "difference", "ratio", "relative", "fisher", "fisher-relative"):
        table.add_column(heading)
    found: dict[str, float] = {}
    for name, settings in WAYS.items():
        if options.check and name not in CHECKED:
            continue
        paper = {"rank": RANK, "solver": "lanczos", "scale": None, "ridge": 0.0}
        score = SLU(model, "classification", seed=options.seed, **paper, **settings).fit(points, calibration=False)
        found[name], *_ = ratio = areas(score, inside, outside)
        readings = () if options.check else ("relative", "fisher", "fisher-relative")
        table.add_row(
            name,
            f"{score.diagnostics.seconds:.0f}",
            str(score.diagnostics.effective_rank),
            text(areas(reread(score, "difference"), inside, outside)),
            text(ratio),
            *(text(areas(score, inside, outside, reading)) for reading in readings),
        )
        console.print(f"[dim]{name}\n{score.diagnostics}[/dim]")
    console.print(table)
    with torch.no_grad():
        model.eval()
        logit = [detect(-model(inside).amax(1), -model(other).amax(1)).auroc for other in outside.values()]
    console.print(f"max logit {text(logit)}")
    if options.check:
        exact, sketched = (found[name] for name in CHECKED)
        if sketched < 0.98 or abs(sketched - exact) > 0.01:
            sys.exit(f"against MNIST: {sketched:.4f} sketched, {exact:.4f} exact")


if __name__ == "__main__":
    main()
