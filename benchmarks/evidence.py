"""The two solvers and every reading, scaled and not, on real data: what docs/solvers.md says rests on this.

    SLU_DATA=... python -m benchmarks.evidence --out FOLDER [--settings fmnist-lenet ...] [--seeds 1 2 3]

Networks are found in FOLDER/weights or trained there (`slu train` does the same). For each network
and each fit the AUROC of every reading against every outside set goes to FOLDER/evidence.json;
what is there already is not run again. The two solvers have the same rank, sketch and points.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from slu import SLU, MaxLogit
from slu.comparing.metrics import detect
from slu.experiments import data
from slu.experiments.randomness import seeded
from slu.experiments.settings import SETTINGS
from slu.experiments.training import Augmentation, Normalized, Recipe, accuracy, split, train, trained
from slu.storage import read, write

READINGS = ("variance", "relative", "fisher", "fisher-relative")
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR_RECIPE = Recipe(
    learning_rate=3e-3,
    epochs=10,
    milestones=(0.7, 0.9),
    augmentation=Augmentation(),
    drop_last=True,
    channels_last=True,
)

# Data, rank and sketch size (the paper's at 3p, and for the last the rule's), outside sets.
STUDIES: dict[str, dict[str, Any]] = {
    "mnist-mlp": {"data": "mnist", "rank": 45, "size": 1000, "outside": ["fmnist", "kmnist"], "turned": "mnist"},
    "fmnist-lenet": {"data": "fmnist", "rank": 132, "size": 1000, "outside": ["mnist", "kmnist"], "turned": "fmnist"},
    "cifar10-conv": {"data": "cifar10", "rank": 132, "size": 2000, "outside": ["svhn", "cifar100"], "turned": None},
}
ANGLES = (30, 60, 90, 120, 150, 180)
FITS: dict[str, dict[str, Any]] = {
    "Lanczos": {"solver": "lanczos"},
    "stream": {"solver": "stream"},
    "stream, shift": {"solver": "stream", "sketch": "shift"},
    "stream, all labels": {"solver": "stream", "labels_per_point": "all"},
    "Lanczos, scaled": {"solver": "lanczos", "scale": "diagonal"},
    "stream, scaled": {"solver": "stream", "scale": "diagonal"},
}


def small_conv() -> nn.Module:
    """Three convolutions with batch normalization: 95,178 parameters, for CIFAR-10 in minutes."""

    def stage(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(
        *stage(3, 32), *stage(32, 64), *stage(64, 128), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)
    )


def network(study: str, seed: int, folder: Path) -> tuple[nn.Module, float]:
    """A trained network and its test accuracy."""
    if study in SETTINGS:
        model, facts = trained(SETTINGS[study], seed, folder)
        return model, facts["accuracy"]
    model = seeded(small_conv, seed)
    path = folder / "weights" / f"{study}-{seed}.safetensors"
    if path.exists():
        header, tensors = read(path)
        model.load_state_dict(tensors)
        return model.eval(), header["accuracy"]
    source = points_of(study, "train")
    train(model, data.Subset(source, split(len(source))[0]), CIFAR_RECIPE, seed=seed)
    found = accuracy(model, points_of(study, "test"))
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, model.state_dict(), {"accuracy": found, "seed": seed})
    return model, found


def points_of(study: str, part: str, name: str | None = None) -> Any:
    """A set as the study's network takes it."""
    source = data.open_set(name or STUDIES[study]["data"], part)
    return Normalized(source, CIFAR_MEAN, CIFAR_STD) if STUDIES[study]["data"] == "cifar10" else source


def stacked(source: Any, indices: Tensor) -> list[Tensor]:
    inputs, _ = source.read(indices)
    return list(inputs.split(100))


def sets(study: str, queries: int) -> tuple[list[Tensor], dict[str, list[Tensor]]]:
    """Queries inside and outside, in batches."""
    some = torch.arange(queries)
    names = [*STUDIES[study]["outside"]]
    if STUDIES[study]["turned"]:
        names += [f"{STUDIES[study]['turned']}-rotated-{angle}" for angle in ANGLES]
    outside = {name: stacked(points_of(study, "test", name), some) for name in names}
    return stacked(points_of(study, "test"), some), outside


def judge(model: nn.Module, study: str, seed: int, options: Any, known: dict[str, Any]) -> dict[str, Any]:
    """{"AUROC": {fit, reading: {set: value}}, "seconds": {fit: value}} of what is not known yet."""
    source = points_of(study, "train")
    learned = split(len(source))[0]
    chosen = learned[torch.randperm(len(learned), generator=torch.Generator().manual_seed(seed))[: options.points]]
    points = stacked(source, chosen)
    inside, outside = sets(study, options.queries)
    found = dict(known)

    def areas(score: Any, **reading: Any) -> dict[str, float]:
        ours = score(inside, progress=False, **reading)
        return {
            name: detect(ours, score(queries, progress=False, **reading)).auroc for name, queries in outside.items()
        }

    if "max logit" not in found:
        found["max logit"] = {"logits": areas(MaxLogit(model).fit(points))}
    for name, settings in FITS.items():
        if name in found:
            continue
        method = SLU(
            model, "classification", rank=STUDIES[study]["rank"], sketch_size=STUDIES[study]["size"], seed=seed,
            **settings,
        )  # fmt: skip
        begun = time.perf_counter()
        score = method.fit(points, calibration=False, progress=False)
        taken = time.perf_counter() - begun
        found[name] = {reading: areas(score, reading=reading) for reading in READINGS}
        found[name]["facts"] = {"seconds": taken, "effective rank": score.diagnostics.effective_rank}
        Console().print(study, seed, name, f"{taken:.1f} s", found[name]["variance"])
    return found


def tabulate(study: str, runs: list[dict[str, Any]]) -> Table:
    """Mean and standard deviation over networks: each outside set, rotations as one, and the mean over all."""
    names = list(runs[0]["max logit"]["logits"])
    turned = [name for name in names if "-rotated-" in name]
    columns = {name: [name] for name in names if name not in turned} | ({"rotations": turned} if turned else {})
    columns["mean"] = names
    table = Table(title=f"{study}: AUROC over {len(runs)} networks, mean ± standard deviation")
    for heading in ("fit", "reading", *columns):
        table.add_column(heading, no_wrap=True)
    for fit in runs[0]:
        for reading in [each for each in runs[0][fit] if each != "facts"]:
            cells = []
            for members in columns.values():
                values = [mean(run[fit][reading][name] for name in members) for run in runs]
                cells.append(f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else ""))
            table.add_row(fit, reading, *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--settings", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--queries", type=int, default=500)
    options = parser.parse_args()
    path = options.out / "evidence.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    for study in options.settings:
        runs = []
        for seed in options.seeds:
            model, right = network(study, seed, options.out)
            key = f"{study}, seed {seed}, n = {options.points}, {options.queries} queries"
            known = stored.get(key, {}).get("runs", {})
            stored[key] = {"accuracy": right, "runs": judge(model, study, seed, options, known)}
            path.write_text(json.dumps(stored, indent=1))
            runs.append(stored[key]["runs"])
        Console(width=150).print(tabulate(study, runs))


if __name__ == "__main__":
    main()
