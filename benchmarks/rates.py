"""False alarms at 1, 5 and 20 % on 36 random problems: `python -m benchmarks.rates docs/results/rates.json [SEED …]`.

Six kinds of data (tables and images to classify, tables to fit; half of them with few distinct inputs), each with a
network trained properly and one that is overfitted to noise, with three seeds. Calibrated by default, on training
points held out of the fit, and on 500 points that were not in the training. Every problem has 1,000 fresh queries.

Of m calibration points that are like the queries, the share that is flagged is Beta(k, m + 1 - k) distributed with
k = ⌊α (m + 1)⌋ over calibration sets, and the count of n queries beta-binomial. Of scores with ties it is less.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional

from slu import SLU
from slu.errors import CalibrationWarning

RATES = (0.01, 0.05, 0.2)
SEEDS = (0, 1, 2)
TRAIN, GIVEN, FRESH = 1500, 500, 1000
INSIDE = 0.99


def _labels(inputs: Tensor, classes: int, draw: torch.Generator) -> Tensor:
    weights = torch.randn(inputs.flatten(1).shape[1], classes, generator=draw)
    noise = torch.rand(len(inputs), classes, generator=draw).log().neg().log().neg()
    return (2 * (inputs.flatten(1) - inputs.mean()) @ weights + noise).argmax(1)


def _curve(inputs: Tensor, draw: torch.Generator) -> Tensor:
    weights = torch.randn(inputs.shape[1], 1, generator=draw)
    return (inputs @ weights).sin() + 0.3 * torch.randn(len(inputs), 1, generator=draw)


def _table(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 8, generator=draw)
    return inputs, _labels(inputs, 4, draw)


def _binary(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = (torch.rand(count, 6, generator=draw) < 0.5).float()
    return inputs, _labels(inputs, 3, draw)


def _continuous_curve(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 5, generator=draw)
    return inputs, _curve(inputs, draw)


def _levels(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = torch.randint(3, (count, 4), generator=draw).float()
    return inputs, _curve(inputs, draw)


def _images(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = torch.rand(count, 1, 6, 6, generator=draw)
    return inputs, _labels(inputs, 4, draw)


def _pixels(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = (torch.rand(count, 1, 3, 3, generator=draw) < 0.3).float()
    return inputs, _labels(inputs, 3, draw)


DATA: dict[str, Callable[[int, torch.Generator], tuple[Tensor, Tensor]]] = {
    "table": _table,
    "binary table": _binary,
    "curve": _continuous_curve,
    "curve of levels": _levels,
    "images": _images,
    "binary images": _pixels,
}
REPEATED = ("binary table", "curve of levels", "binary images")
TRAINING = {"trained": (32, 6), "overfitted": (128, 80)}
"""Width and epochs; an overfitted network has half of its labels replaced by random ones."""


@dataclass(frozen=True)
class Row:
    """One problem and one calibration: the share of fresh queries flagged at each rate, and the interval it is due."""

    data: str
    training: str
    seed: int
    calibration: str
    points: int
    distinct: int
    warned: bool
    flagged: list[float]
    inside: list[list[float]]


def _network(data: str, inputs: Tensor, outputs: int, width: int) -> nn.Module:
    if inputs.dim() > 2:
        side = inputs.shape[-1] - 1
        return nn.Sequential(
            nn.Conv2d(1, width // 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(width // 4 * side**2, width), nn.ReLU(),
            nn.Linear(width, outputs),
        )  # fmt: skip
    between = nn.Tanh if data.startswith("curve") else nn.ReLU
    return nn.Sequential(
        nn.Linear(inputs.shape[1], width), between(), nn.Linear(width, width), between(), nn.Linear(width, outputs)
    )


def _trained(data: str, training: str, inputs: Tensor, targets: Tensor, draw: torch.Generator) -> nn.Module:
    width, epochs = TRAINING[training]
    classes = targets.dim() == 1
    outputs = int(targets.max()) + 1 if classes else 1
    model = _network(data, inputs, outputs, width)
    descent = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for places in torch.randperm(len(inputs), generator=draw).split(100):
            descent.zero_grad()
            predicted, wanted = model(inputs[places]), targets[places]
            (functional.cross_entropy if classes else functional.mse_loss)(predicted, wanted).backward()
            descent.step()
    descent.zero_grad(set_to_none=True)
    return model.eval()


def interval(points: int, rate: float) -> list[float]:
    """Ends of the share that is flagged, of 99 % of calibration sets of so many points."""
    wanted = math.floor(rate * (points + 1) + 1e-9)
    counts = stats.betabinom(FRESH, wanted, points + 1 - wanted)
    return [float(counts.ppf(end)) / FRESH for end in ((1 - INSIDE) / 2, (1 + INSIDE) / 2)]


def measured(data: str, training: str, seed: int) -> list[Row]:
    """The rows of one problem, by default and on given points."""
    draw = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    inputs, targets = DATA[data](TRAIN + GIVEN + FRESH, draw)
    train, own, fresh = inputs.split([TRAIN, GIVEN, FRESH])
    labels = targets[:TRAIN]
    if training == "overfitted":
        replaced = torch.rand(TRAIN, generator=draw) < 0.5
        labels = torch.where(
            replaced.view(-1, *[1] * (labels.dim() - 1)), labels[torch.randperm(TRAIN, generator=draw)], labels
        )
    model = _trained(data, training, train, labels, draw)
    rows = []
    for name, given in (("held out", None), ("given", own)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            likelihood = "classification" if targets.dim() == 1 else "regression"
            score = SLU(model, likelihood, seed=seed).fit((train, labels), calibration=given)
        warned = any(issubclass(each.category, CalibrationWarning) for each in caught)
        calibration, pvalues = score.state.calibration.required("a row"), score.pvalue(fresh)
        flagged = [float((pvalues <= rate).double().mean()) for rate in RATES]
        inside = [interval(calibration.points, rate) for rate in RATES]
        distinct = calibration.distinct("combined")
        rows.append(Row(data, training, seed, name, calibration.points, distinct, warned, flagged, inside))
    return rows


def summary(rows: list[Row]) -> str:
    """The table of docs/calibration.md: a line per kind of inputs, training and calibration."""
    lines = ["| inputs | network | calibration | 1 % | 5 % | 20 % | within | above | warned |", "|" + "---|" * 9]
    for repeated in (False, True):
        for training in TRAINING:
            for calibration in ("held out", "given"):
                some = [
                    row for row in rows
                    if (row.data in REPEATED, row.training, row.calibration) == (repeated, training, calibration)
                ]  # fmt: skip
                shares, ends = np.array([row.flagged for row in some]), np.array([row.inside for row in some])
                spread = [f"{100 * each.mean():.1f} ± {100 * each.std(ddof=1):.1f}" for each in shares.T]
                above, below = shares > ends[..., 1], shares < ends[..., 0]
                lines.append(
                    f"| {'repeated' if repeated else 'unique'} | {training} | {calibration} | {' | '.join(spread)} | "
                    f"{(~above & ~below).sum()} of {shares.size} | {above.sum()} | "
                    f"{sum(row.warned for row in some)} of {len(some)} |"
                )
    return "\n".join(lines)


def main(path: str, *seeds: str) -> None:
    """Measure all problems, write them as JSON and print the table."""
    chosen = [int(seed) for seed in seeds] or SEEDS
    rows = [row for data in DATA for training in TRAINING for seed in chosen for row in measured(data, training, seed)]
    Path(path).write_text("[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n")
    print(summary(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
