"""How many fresh inputs `flag` reports at a rate of 5 %, calibrated on training points held out of the fit.

`python -m benchmarks.false_alarms` trains small networks, from a few epochs to memorized training sets, and fits the
default score to each, several times with other held-out points. Beside the share of fresh inputs that is flagged it
prints what the network says of the held-out points, from which `slu.core.trust` decides whether to warn.

The thresholds of that rule were chosen on the networks of CHOOSING and judged on those of JUDGING, which are of other
data, other training and other seeds. Needs scikit-learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional

from slu import SLU, SluScore
from slu.core.trust import Predictions
from slu.errors import CalibrationWarning

RATE = 0.05
TOO_MANY = 0.075
"""Half as many false alarms again as asked for: of 8 fits with 100 calibration points two standard errors above."""
FITS = 8
FRESH = 2000


@dataclass(frozen=True)
class Case:
    """A network: its data, how many points it is trained on, and how."""

    data: str
    points: int
    network: str
    width: int
    epochs: int
    noise: float = 0.0
    """The share of training labels that are replaced by random ones."""

    def __str__(self) -> str:
        wrong = f", {self.noise:.0%} random labels" if self.noise else ""
        return f"{self.data} {self.points}{wrong}, {self.network} {self.width}, {self.epochs} epochs"


CHOOSING, CHOOSING_SEEDS = (
    [
        Case("digits", 1000, "relu", 64, 4),
        Case("digits", 1000, "relu", 64, 100),
        Case("digits", 1000, "tanh", 32, 15),
        Case("digits", 300, "relu", 64, 100),
        Case("digits", 1000, "relu", 128, 5, 0.2),
        Case("digits", 1000, "relu", 128, 200, 0.2),
        Case("blobs", 1000, "relu", 64, 5),
        Case("blobs", 1000, "relu", 128, 300),
        Case("blobs", 400, "tanh", 128, 300),
        Case("apart", 1000, "relu", 64, 30),
    ],
    (0, 1),
)
JUDGING, JUDGING_SEEDS = (
    [
        Case("cancer", 400, "relu", 32, 5),
        Case("cancer", 400, "relu", 32, 200),
        Case("cancer", 400, "tanh", 64, 100),
        Case("moons", 600, "relu", 64, 30),
        Case("moons", 600, "tanh", 64, 1000),
        Case("moons", 600, "relu", 256, 1000, 0.1),
        Case("hypercube", 1000, "relu", 64, 6),
        Case("hypercube", 1000, "tanh", 128, 200),
        Case("hypercube", 300, "relu", 128, 200),
        Case("digits", 1000, "convolutions", 16, 6),
        Case("digits", 1000, "convolutions", 16, 60),
        Case("random", 500, "relu", 256, 300),
        Case("attributes", 1000, "relu", 64, 10),
        Case("attributes", 1000, "relu", 128, 300),
    ],
    (2, 3),
)


def _shifted(centres: float) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    def draw(count: int, seed: int) -> tuple[Tensor, Tensor]:
        means = centres * torch.randn(5, 10, generator=torch.Generator().manual_seed(seed))
        draws = torch.Generator().manual_seed(1000 + seed)
        labels = torch.randint(5, (count,), generator=draws)
        return means[labels] + torch.randn(count, 10, generator=draws), labels

    return draw


def _table(inputs: Any, labels: Any, seed: int) -> tuple[Tensor, Tensor]:
    order = np.random.default_rng(seed).permutation(len(labels))
    inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-6)
    return torch.tensor(inputs[order], dtype=torch.float32), torch.tensor(labels[order])


def _digits(count: int, seed: int) -> tuple[Tensor, Tensor]:
    del count
    inputs, labels = datasets.load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return torch.tensor(inputs, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]


def _cancer(count: int, seed: int) -> tuple[Tensor, Tensor]:
    del count
    inputs, labels = datasets.load_breast_cancer(return_X_y=True)
    return _table(inputs, labels, seed)


def _moons(count: int, seed: int) -> tuple[Tensor, Tensor]:
    inputs, labels = datasets.make_moons(count, noise=0.25, random_state=seed)
    return _table(inputs, labels, seed)


def _hypercube(count: int, seed: int) -> tuple[Tensor, Tensor]:
    inputs, labels, *_ = datasets.make_classification(
        count, 20, n_informative=8, n_classes=4, flip_y=0.05, class_sep=1.0, random_state=seed
    )
    return _table(inputs, labels, seed)


def _random(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(count, 10, generator=draws), torch.randint(4, (count,), generator=draws)


def _attributes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Six labels that need not exclude each other, each drawn by a logistic function of two of the inputs."""
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 8, generator=draws)
    chances = (4 * (inputs[:, :6] + inputs[:, 1:7] * inputs[:, 2:8])).sigmoid()
    return inputs, (torch.rand(chances.shape, generator=draws) < chances).long()


DATA = {
    "digits": _digits,
    "blobs": _shifted(0.8),
    "apart": _shifted(3.0),
    "cancer": _cancer,
    "moons": _moons,
    "hypercube": _hypercube,
    "random": _random,
    "attributes": _attributes,
}


def _network(case: Case, inputs: int, outputs: int) -> nn.Module:
    if case.network == "convolutions":
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, case.width, 3), nn.ReLU(),
            nn.Conv2d(case.width, 2 * case.width, 3, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(8 * case.width, outputs),
        )  # fmt: skip
    between = {"relu": nn.ReLU, "tanh": nn.Tanh}[case.network]
    return nn.Sequential(
        nn.Linear(inputs, case.width), between(), nn.Linear(case.width, case.width), between(),
        nn.Linear(case.width, outputs),
    )  # fmt: skip


def _trained(case: Case, inputs: Tensor, labels: Tensor, outputs: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = _network(case, inputs.shape[1], outputs)
    descent = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(case.epochs):
        for places in torch.randperm(len(inputs)).split(50):
            descent.zero_grad()
            predicted, wanted = model(inputs[places]), labels[places]
            if wanted.dim() > 1:
                functional.binary_cross_entropy_with_logits(predicted, wanted.float()).backward()
            else:
                functional.cross_entropy(predicted, wanted).backward()
            descent.step()
    descent.zero_grad(set_to_none=True)
    return model.eval()


@dataclass(frozen=True)
class Row:
    """What was measured on one network: means over the fits, and in how many of them the score warned."""

    case: Case
    seed: int
    predictions: Predictions
    fresh_accuracy: float
    false_alarms: float
    warned: int

    def cells(self) -> list[str]:
        """Of the table, without the network."""
        seen = self.predictions
        return [
            f"{seen.points}", f"{seen.accuracy:.3f}", f"{seen.confidence:.3f}", f"{seen.loss:.2g}",
            f"{self.fresh_accuracy:.3f}", f"{self.false_alarms:.1%}", f"{self.warned}",
        ]  # fmt: skip


def measured(case: Case, seed: int) -> Row:
    """One network, and the default score fitted to it with several seeds, each of which holds out other points."""
    inputs, labels = DATA[case.data](case.points + FRESH, seed)
    several = labels.dim() > 1
    outputs = labels.shape[1] if several else int(labels.max()) + 1
    (train, fresh), (targets, right) = ((each[: case.points], each[case.points :]) for each in (inputs, labels))
    if case.noise:
        draws = torch.Generator().manual_seed(seed)
        replaced = torch.rand(case.points, generator=draws) < case.noise
        targets = torch.where(replaced, torch.randint(outputs, targets.shape, generator=draws), targets)
    model = _trained(case, train, targets, outputs, seed)
    fits = [_fitted(model, "multilabel" if several else "classification", train, targets, fit) for fit in range(FITS)]
    predictions = [score.state.calibration.required("the table").predictions for score, _ in fits]
    mean = Predictions(*np.mean([astuple(each) for each in predictions if each is not None], 0))
    with torch.no_grad():
        predicted = model(fresh)
    correct = (predicted > 0).long() == right if several else predicted.argmax(1) == right
    alarms = [float(score.flag(fresh, false_alarms=RATE).double().mean()) for score, _ in fits]
    return Row(
        case,
        seed,
        replace(mean, points=round(mean.points)),
        float(correct.double().mean()),
        float(np.mean(alarms)),
        sum(warned for _, warned in fits),
    )


def _fitted(model: nn.Module, likelihood: str, inputs: Tensor, targets: Tensor, seed: int) -> tuple[SluScore, bool]:
    """A default fit, and whether it warned."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        score = SLU(model, likelihood, seed=seed).fit((inputs, targets))
    return score, any(issubclass(each.category, CalibrationWarning) for each in caught)


def _judged(rows: list[Row]) -> str:
    """Hits, misses and false warnings; a network counts as warned if most of its fits are."""
    warned = [row for row in rows if row.warned > FITS / 2]
    quiet = [row for row in rows if row.warned <= FITS / 2]
    many = [sum(row.false_alarms > TOO_MANY for row in some) for some in (warned, quiet)]
    means = [np.mean([row.false_alarms for row in some]) for some in (warned, quiet)]
    return (
        f"{len(warned)} warned: {many[0]} with more than {TOO_MANY:.1%} false alarms, {len(warned) - many[0]} without "
        f"(mean {means[0]:.1%}); {len(quiet)} not warned: {many[1]} with, {len(quiet) - many[1]} without "
        f"(mean {means[1]:.1%})"
    )


def main() -> None:
    """Print the tables of docs/calibration.md; a row has the two seeds of a network."""
    columns = [
        "network", "m", "accuracy", "confidence", "loss", "accuracy on fresh", "false alarms", f"warned, of {FITS}",
    ]  # fmt: skip
    for purpose, cases, seeds in (("Chosen on", CHOOSING, CHOOSING_SEEDS), ("Judged on", JUDGING, JUDGING_SEEDS)):
        print(f"\n**{purpose}** (seeds {' and '.join(map(str, seeds))}):\n")
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        rows = []
        for case in cases:
            rows += [measured(case, seed) for seed in seeds]
            pairs = zip(*(row.cells() for row in rows[-len(seeds) :]), strict=True)
            print(f"| {case} | {' | '.join(map(', '.join, pairs))} |", flush=True)
        print(f"\n{_judged(rows)}")


if __name__ == "__main__":
    main()
