"""Several scores of one network read at once: the gradients of an input are formed once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from slu.budgets import Cost
from slu.checks import one_of
from slu.core.directions import ALL
from slu.core.positions import spread
from slu.core.queries import score_batches
from slu.core.readout import READINGS, Readout
from slu.data import Batch
from slu.errors import SettingError
from slu.gradients import Network, PerExampleGradients, Rows

_OF_ALL_OUTPUTS = tuple(name for name, row in READINGS.items() if row.rows and row.outputs == ALL)


class GradientScore(Protocol):
    """A fitted score with a reading of gradients."""

    @property
    def readout(self) -> Readout | None:
        """What measures the gradients; None where there are none."""
        ...

    def check_network(self) -> None:
        """Refuse where the weights have changed."""
        ...


def read_shared(
    scores: Sequence[GradientScore], data: Any, reading: str = "variance", *, progress: bool | None = None
) -> list[Tensor]:
    """What each of several scores of one network gives for the data, by one reading, up to rounding.

    For a network whose gradients cost more than what a score does with them, as those of deep convolutional networks
    do, this takes about the time of one score instead of that of all of them. For a small network of linear layers
    separate calls are faster: here all gradients are formed in full.

    Args:
        scores: Of one module, called in the same way, and the same parameters: SLU's, and those of baselines with
            gradients.
        data: As of a call of a score.
        reading: One that measures every output: "variance" or "relative".
        progress: Whether to show a bar for a loader; by default in a terminal only.

    Raises:
        SettingError: No scores, scores of different networks, or one that measures no gradients.

    Cost: t gradients per input, and each score's own work on them. Gradients of some examples are held in full: 64
    million numbers or what SLU's `memory=` allows, at least one gradient.
    """
    row = READINGS[one_of("reading", reading, _OF_ALL_OUTPUTS)]
    readouts = _checked(scores)
    first, lengths = readouts[0], [0]
    most = min(each.gradients.max_numbers for each in readouts)

    def meter(rows: Rows) -> Tensor:
        """The numbers of all readouts below each other."""
        pieces = list(rows.pieces)
        numbers = [each.meter(replace(rows, pieces=iter(pieces))).double() for each in readouts]
        lengths[:] = map(len, numbers)
        return torch.cat(numbers)

    gradients = PerExampleGradients(first.network, most, whole=True)
    joint = replace(first, gradients=gradients, meter=meter, layers=lambda: None)

    def score(batch: Batch) -> list[Tensor]:
        points, choices = joint.measure(batch, {ALL: set(row.rows)})
        measured = choices[ALL]
        parts = {kind: numbers.split(lengths) for kind, numbers in measured.rows.items()}
        own = (
            replace(measured, rows={kind: each[place] for kind, each in parts.items()}, value=readout.value)
            for place, readout in enumerate(readouts)
        )
        return [spread(row.score(each), points, None) for each in own]

    dtype = first.network.selection.dtype
    cost = Cost(0, 0, most * dtype.itemsize, 1)
    return [each.to(dtype) for each in score_batches(first.network, data, score, cost=lambda: cost, progress=progress)]


def _checked(scores: Sequence[GradientScore]) -> list[Readout]:
    """The readouts of scores that can be read at once."""
    readouts: list[Readout] = []
    for place, score in enumerate(scores):
        readout: Readout | None = getattr(score, "readout", None)
        if readout is None:
            raise SettingError(f"score {place}, {type(score).__name__}, measures no gradients; call it on its own")
        score.check_network()
        readouts.append(readout)
        one, other = (_called(each.network) for each in (readouts[0], readout))
        if one != other:
            raise SettingError(
                f"score {place} is of another module, other parameters, another forward= or another form of batches "
                "than score 0; call it on its own"
            )
    if not readouts:
        raise SettingError("there are no scores to read; give at least one")
    return readouts


def _called(network: Network) -> tuple[Any, ...]:
    """All that decides the gradients of some data."""
    return id(network.model), network.selection.names, id(network.own_forward), network.reader.format.inputs
