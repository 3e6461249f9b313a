"""Which reading of one fit tells best what lies outside: single ones, and ways to combine them.

    python -m benchmarks.readings [digits] [mnist] [fashion] [--seeds 3] [--points 4000] [--unscaled]

Trains networks, fits SLU once for each and number of labels a point, and prints the mean AUROC over the shifts of
every network. A way that is chosen on the networks it is judged on looks better than it is: the last row chooses, for
each kind of network, the way that is best on all others. MNIST and FashionMNIST need SLU_DATA.

Letters: z the logarithm of a reading, or an output's score as it is, with mean 0 and deviation 1 on calibration points.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from slu import SLU, SluScore
from slu.comparing.metrics import detect
from slu.experiments.data import Memory, digits, open_set, stack
from slu.experiments.models import MLP, LeNet
from slu.experiments.randomness import seeded
from slu.experiments.training import Recipe, train

QUERIES = 600
LABELS: tuple[int | str, ...] = (1, 4, "all")
Columns = dict[str, Tensor]


@dataclass(frozen=True)
class Study:
    """A trained network with points to fit on, points like them, and points unlike them, by shift."""

    kind: str
    model: nn.Module
    fitted: Tensor
    inside: Tensor
    outside: dict[str, Tensor]


def digit_studies(seeds: int, points: int) -> Iterator[Study]:
    """Digits with two classes held out, other ones for each seed."""
    for seed in range(seeds):
        data = digits.load((2 * seed % 10, (2 * seed + 1) % 10), seed=seed)
        model = seeded(lambda data=data: MLP((64, 30, len(data.classes))), seed)
        train(model, Memory(data.train_images, data.train_labels), Recipe(epochs=30), seed=seed)
        outside = {f"{turn * 90} degrees": digits.rotated(data.test_images, turn) for turn in (1, 2)}
        outside["held out"] = data.held_out_images
        outside["noise"] = data.test_images + 0.3 * _noise(data.test_images, seed)
        yield Study("digits", model, data.train_images[:points], data.test_images, outside)


def image_studies(kind: str, seeds: int, points: int) -> Iterator[Study]:
    """MNIST with a perceptron, FashionMNIST with a LeNet: the shifts of the paper and two other sets."""
    name, other, build, epochs = {
        "mnist": ("mnist", "fmnist", lambda: MLP((784, 20, 10)), 15),
        "fashion": ("fmnist", "mnist", LeNet, 8),
    }[kind]
    names = [other, "kmnist", *(f"{name}-rotated-{angle}" for angle in (30, 90, 180))]
    learned = open_set(name, "train")
    for seed in range(seeds):
        model = seeded(build, seed)
        train(model, learned, Recipe(epochs=epochs), seed=seed)
        outside = {each: stack(open_set(each, "test"), QUERIES)[0] for each in names}
        inside = stack(open_set(name, "test"), QUERIES)[0]
        yield Study(kind, model, stack(learned, points)[0], inside, outside)


def columns(score: SluScore, inputs: Tensor) -> Columns:
    """Every number that a way may use, of every input."""
    found = {name: values.double().clamp(min=1e-300).log() for name, values in score.read_all(_split(inputs)).items()}
    with torch.no_grad():
        outputs = torch.cat([score.method.network.model.eval()(part) for part in _split(inputs)]).double()
    return found | {"max logit": -outputs.amax(1), "energy": -outputs.logsumexp(1)}


def added(*names: str) -> Callable[[Columns, Columns], Tensor]:
    """The sum of standardized columns."""
    return lambda known, fresh: sum(((fresh[n] - known[n].mean()) / known[n].std() for n in names), torch.zeros(()))


def whitened(*names: str) -> Callable[[Columns, Columns], Tensor]:
    """The same after the columns were made uncorrelated on calibration points, turned as little as can be."""

    def way(known: Columns, fresh: Columns) -> Tensor:
        before = torch.stack([(known[n] - known[n].mean()) / known[n].std() for n in names])
        now = torch.stack([(fresh[n] - known[n].mean()) / known[n].std() for n in names])
        values, vectors = torch.linalg.eigh(torch.cov(before))
        return ((vectors * values.clamp(min=1e-6).rsqrt()) @ vectors.T @ now).sum(0)

    return way


PAIR = ("fisher", "fisher-relative")
SINGLE = ("variance", "relative", *PAIR, "max logit", "energy")
WAYS: dict[str, Callable[[Columns, Columns], Tensor]] = {
    **{name: added(name) for name in SINGLE},
    "variance + relative": added("variance", "relative"),
    "combined: fisher + fisher-relative": added(*PAIR),
    "combined, whitened": whitened(*PAIR),
    "combined + energy": added(*PAIR, "energy"),
    "combined + max logit": added(*PAIR, "max logit"),
    "combined + max logit, whitened": whitened(*PAIR, "max logit"),
    "fisher-relative + max logit": added("fisher-relative", "max logit"),
}


def judged(study: Study, labels: int | str, scale: str | None, seed: int) -> dict[str, float]:
    """The mean AUROC over the shifts, by way."""
    budget = "3p" if scale is None else "4p"
    method = SLU(
        study.model, "classification", budget=budget, scale=scale, ridge=0.0, seed=seed, labels_per_point=labels
    )
    score = method.fit(_split(study.fitted))
    assert score.reference.pool is not None
    known = columns(score, torch.cat([inputs for inputs, _ in score.reference.pool.batches()]))
    inside = columns(score, study.inside)
    outside = [columns(score, other) for other in study.outside.values()]
    return {
        name: sum(detect(way(known, inside), way(known, other)).auroc for other in outside) / len(outside)
        for name, way in WAYS.items()
    }


def held_out_choice(found: dict[str, dict[str, float]]) -> dict[str, tuple[str, float]]:
    """For every kind of network the way that is best on the others, and what it comes to there."""
    chosen = {}
    for kind, areas in found.items():
        others = [each for name, each in found.items() if name != kind]
        if others:
            best = max(WAYS, key=lambda way: sum(each[way] for each in others))
            chosen[kind] = (best, areas[best])
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=["digits"], choices=["digits", "mnist", "fashion"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--points", type=int, default=4000)
    parser.add_argument("--unscaled", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[str, dict[str, float]]] = {}  # by labels a point, kind of network, way
    for kind in options.kinds:
        make = digit_studies if kind == "digits" else lambda *a, kind=kind: image_studies(kind, *a)
        runs: dict[str, list[dict[str, float]]] = {}
        for seed, study in enumerate(make(options.seeds, options.points)):
            for labels in LABELS:
                scale = None if options.unscaled else "diagonal"
                runs.setdefault(str(labels), []).append(judged(study, labels, scale, seed))
        for labels, all_of in runs.items():
            means = {way: sum(each[way] for each in all_of) / len(all_of) for way in WAYS}
            found.setdefault(labels, {})[kind] = means
    _print(found, options.seeds)


def _print(found: dict[str, dict[str, dict[str, float]]], seeds: int) -> None:
    console = Console(width=130)
    for labels, by_kind in found.items():
        table = Table(title=f"Mean AUROC over shifts and {seeds} training seeds; labels a point: {labels}")
        for heading in ("way", *by_kind, "mean"):
            table.add_column(heading, justify="left" if heading == "way" else "right")
        for way in WAYS:
            areas = [areas[way] for areas in by_kind.values()]
            table.add_row(way, *(f"{area:.3f}" for area in [*areas, sum(areas) / len(areas)]))
        chosen = held_out_choice(by_kind)
        if chosen:
            table.add_section()
            table.add_row("best on the others", *(f"{area:.3f}\n{way}" for way, area in chosen.values()), "")
        console.print(table)


def _noise(like: Tensor, seed: int) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))


def _split(inputs: Tensor) -> list[Tensor]:
    return list(inputs.split(100))


if __name__ == "__main__":
    main()
