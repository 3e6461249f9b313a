"""Which solver, rank, ridge and reading: real data, every combination. docs/solvers.md and docs/readings.md rest on it.

    SLU_DATA=... python -m benchmarks.evidence --out FOLDER [--settings mnist-mlp ...] [--seeds 1 2 3] [--lanczos]

Networks are found in FOLDER/weights or trained there (`slu train` does the same). What is found of one network goes to
FOLDER/evidence-SETTING-SEED.json and is not found again. Queries are seen once through a sketch that all fits of a
network share (`benchmarks.seen`); calibration points are training points that no fit has seen.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.seen import Seen, read, see
from slu import SLU, Calibration, MaxLogit, SluScore
from slu.comparing.metrics import detect
from slu.experiments import data
from slu.experiments.randomness import seeded
from slu.experiments.settings import SETTINGS
from slu.experiments.training import Augmentation, Normalized, Recipe, accuracy, split, train, trained
from slu.storage import read as read_file
from slu.storage import write
from slu.subspace import SketchedSubspace

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR_RECIPE = Recipe(
    learning_rate=3e-3, epochs=10, milestones=(0.7, 0.9), augmentation=Augmentation(), drop_last=True,
    channels_last=True,
)  # fmt: skip

# Data, rank and sketch size (the paper's at 3p, and for the last the rule's), outside sets.
STUDIES: dict[str, dict[str, Any]] = {
    "mnist-mlp": {"data": "mnist", "rank": 45, "size": 1000, "outside": ["fmnist", "kmnist"], "turned": "mnist"},
    "fmnist-lenet": {"data": "fmnist", "rank": 132, "size": 1000, "outside": ["mnist", "kmnist"], "turned": "fmnist"},
    "cifar10-conv": {"data": "cifar10", "rank": 132, "size": 2000, "outside": ["svhn", "cifar100"], "turned": None},
}
ANGLES = (30, 90, 180)
RANKS = (15, 25, 50, 132, 400)
RIDGES = (0.0, 0.003, 0.01, 0.03, 0.1)
COMBINED = "combined"


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
        header, tensors = read_file(path)
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


def fits(model: nn.Module, study: str, seed: int, lanczos: bool) -> Iterator[tuple[str, SLU, tuple[int, ...]]]:
    """Every fit by name, and the ranks at which it is read; those of one scale share a sketch."""
    rank, size = STUDIES[study]["rank"], STUDIES[study]["size"]
    for scale in (None, "diagonal"):

        def method(wanted: int, scale: Any = scale, **own: Any) -> SLU:
            settings = {"rank": wanted, "sketch_size": size, "sketch": "shift", "scale": scale, "ridge": 0.0, **own}
            return SLU(model, "classification", seed=seed, **settings)

        name = "" if scale is None else ", scaled"
        yield f"stream{name}", method(max(RANKS)), (*RANKS, rank)
        yield f"stream, all labels{name}", method(max(RANKS), labels_per_point="all"), (*RANKS, rank)
        if lanczos:
            yield f"Lanczos{name}", method(rank, solver="lanczos"), (rank,)


def cut(score: SluScore, rank: int) -> SketchedSubspace:
    """The leading directions of a fit, as a fit of that rank would have them."""
    whole = score.subspace
    kept = min(rank, len(whole.basis))
    values = whole.diagnostics.ritz_values
    facts = replace(whole.diagnostics, ritz_values=values[:kept], effective_rank=kept)
    return SketchedSubspace(whole.basis[:kept], score.sketch.correction(kept), facts)


def areas(score: SluScore, subspace: SketchedSubspace, ridge: float, seen: dict[str, Seen]) -> dict[str, Any]:
    """AUROC by reading and set."""
    found = {name: read(score, subspace, ridge, each) for name, each in seen.items()}
    standard = Calibration.of(found.pop("calibration"), "given").standard
    for scores in found.values():
        scores[COMBINED] = standard(scores)
    inside = found.pop("inside")
    return {name: {o: detect(inside[name], scores[name]).auroc for o, scores in found.items()} for name in inside}


def judge(model: nn.Module, study: str, seed: int, options: Any) -> dict[str, Any]:
    """{fit: {"seconds", "rank", "AUROC": {"rank, ridge": {reading: {set: value}}}}}, and max logit."""
    source = points_of(study, "train")
    learned = split(len(source))[0]
    order = learned[torch.randperm(len(learned), generator=torch.Generator().manual_seed(seed))]
    points = stacked(source, order[: options.points])
    apart = stacked(source, order[options.points : options.points + options.queries])
    inside, outside = sets(study, options.queries)
    logits = MaxLogit(model).fit(inside)
    sure = logits(inside, progress=False)
    found: dict[str, Any] = {
        "max logit": {name: detect(sure, logits(each, progress=False)).auroc for name, each in outside.items()}
    }
    seen: dict[str | None, dict[str, Seen]] = {}
    for name, method, ranks in fits(model, study, seed, options.lanczos):
        score = method.fit(points, calibration=False, progress=False)
        kind = method.scaling.kind
        if kind not in seen:
            seen = {kind: {o: see(score, each) for o, each in
                           {"calibration": apart, "inside": inside, **outside}.items()}}  # fmt: skip
        facts = score.diagnostics
        whole = ranks[-1] if len(ranks) == 1 else None
        table = {
            f"{rank}, {ridge}": areas(score, score.subspace if rank == whole else cut(score, rank), ridge, seen[kind])
            for rank in dict.fromkeys(ranks)
            for ridge in RIDGES
        }
        found[name] = {"seconds": facts.seconds, "rank": facts.effective_rank, "AUROC": table}
        Console().print(study, seed, name, f"{facts.seconds:.1f} s", f"{facts.effective_rank} directions")
    return found


def tabulate(study: str, runs: list[dict[str, Any]]) -> Table:
    """The mean AUROC over all outside sets, mean and standard deviation over networks."""
    table = Table(title=f"{study}: mean AUROC over the outside sets, {len(runs)} networks")
    names = ("variance", "relative", "fisher", "fisher-relative", COMBINED)
    for heading in ("fit", "rank, ridge", *names):
        table.add_column(heading, no_wrap=True)
    table.add_row("max logit", "", _spread([mean(run["max logit"].values()) for run in runs]))
    for fit in [name for name in runs[0] if name != "max logit"]:
        for shape in runs[0][fit]["AUROC"]:
            cells = [
                _spread([mean(run[fit]["AUROC"][shape][name].values()) for run in runs]) for name in names
            ]  # fmt: skip
            table.add_row(fit, shape, *cells)
    return table


def _spread(values: list[float]) -> str:
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--settings", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--lanczos", action="store_true", help="also fit by Lanczos, which takes minutes a network")
    options = parser.parse_args()
    for study in options.settings:
        runs = []
        for seed in options.seeds:
            path = options.out / f"evidence-{study}-{seed}.json"
            if not path.exists():
                model, right = network(study, seed, options.out)
                shape = {name: STUDIES[study][name] for name in ("rank", "size")}
                asked = {"points": options.points, "queries": options.queries, **shape}
                path.write_text(
                    json.dumps({"accuracy": right, **asked, "runs": judge(model, study, seed, options)}, indent=1)
                )
            runs.append(json.loads(path.read_text())["runs"])
        Console(width=170).print(tabulate(study, runs))


if __name__ == "__main__":
    main()
