"""Several scores of one network read at once: the gradients of an input are formed once for all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slu.budgets import Cost
from slu.checks import one_of
from slu.core.directions import ALL
from slu.core.positions import spread
from slu.core.protocols import Score
from slu.core.queries import score_batches
from slu.core.readout import READINGS, Measured, Readout
from slu.data import Batch
from slu.errors import SettingError
from slu.gradients import MAX_NUMBERS, PerExampleGradients, Rows

_OF_ALL_OUTPUTS = tuple(name for name, row in READINGS.items() if row.rows and row.outputs == ALL)


class SharedScores(NamedTuple):
    """Of one score.

    Attributes:
        scores: (n,) what a call of it gives, up to rounding.
        seconds: What it would have taken alone: the gradients, and its own work on them.
    """

    scores: Tensor
    seconds: float


def read_shared(
    scores: Sequence[Score], data: Any, reading: str = "variance", *, progress: bool | None = None
) -> list[SharedScores]:
    """What each of several scores of one network gives for the data, by one reading.

    For a network whose gradients cost more than what a score does with them, as those of convolutional networks do,
    this takes about the time of one score instead of that of all of them.

    Args:
        scores: Of one module, the same parameters and one likelihood: SLU's, and those of baselines with gradients.
        data: As of a call of a score.
        reading: One that measures every output: "variance" or "relative".
        progress: Whether to show a bar for a loader; by default in a terminal only.

    Raises:
        SettingError: No scores, scores of different networks, or one that measures no gradients.

    Cost: t gradients per input, and each score's own work on them. Gradients of some examples are held in full, 256 MiB
    or those of one vector.
    """
    row = READINGS[one_of("reading", reading, _OF_ALL_OUTPUTS)]
    shared = _Shared(_checked(scores))
    first = shared.readouts[0]
    gradients = PerExampleGradients(first.network, whole=True)
    joint = replace(first, gradients=gradients, meter=shared, layers=lambda: None)

    def score(batch: Batch) -> list[Tensor]:
        points, measured = joint.measure(batch, {ALL: set(row.rows)})
        return [spread(row.score(each), points, None) for each in shared.parts(measured[ALL])]

    kind = first.network.selection.dtype
    held = MAX_NUMBERS * kind.itemsize
    begun = time.perf_counter()
    columns = score_batches(first.network, data, score, cost=lambda: Cost(0, 0, held, 1), progress=progress)
    common = time.perf_counter() - begun - sum(shared.seconds)
    return [SharedScores(column.to(kind), common + own) for column, own in zip(columns, shared.seconds, strict=True)]


@dataclass
class _Shared:
    """The meter of several readouts: their numbers below each other, in float64."""

    readouts: Sequence[Readout]

    def __post_init__(self) -> None:
        self.seconds = [0.0] * len(self.readouts)
        self._lengths: list[int] = []

    def __call__(self, rows: Rows) -> Tensor:
        pieces = list(rows.pieces)
        numbers = []
        for place, readout in enumerate(self.readouts):
            begun = time.perf_counter()
            numbers.append(readout.meter(replace(rows, pieces=iter(pieces))))
            self.seconds[place] += time.perf_counter() - begun
        self._lengths = [len(each) for each in numbers]
        return torch.cat([each.double() for each in numbers])

    def parts(self, measured: Measured) -> Iterator[Measured]:
        """What each of them has measured of a batch."""
        parts = {kind: numbers.split(self._lengths) for kind, numbers in measured.rows.items()}
        for place, readout in enumerate(self.readouts):
            rows = {kind: each[place] for kind, each in parts.items()}
            yield replace(measured, rows=rows, value=readout.value)


def _checked(scores: Sequence[Score]) -> list[Readout]:
    """The readouts of scores that can be read at once."""
    readouts: list[Readout] = []
    for place, score in enumerate(scores):
        readout: Readout | None = getattr(score, "readout", None)
        if readout is None:
            raise SettingError(f"score {place}, {type(score).__name__}, measures no gradients; call it on its own")
        getattr(score, "check_network")()  # noqa: B009 (what has a readout has this)
        readouts.append(readout)
        one, other = (each.network for each in (readouts[0], readout))
        if one.model is not other.model or one.selection.names != other.selection.names:
            raise SettingError(f"score {place} is of another module or parameters than score 0; call it on its own")
    if not readouts:
        raise SettingError("there are no scores to read; give at least one")
    return readouts
