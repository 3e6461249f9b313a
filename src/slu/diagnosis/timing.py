"""Seconds of a forward pass, of a default query and of a fit, measured on one batch."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from slu.core import SLU
from slu.core.concerns import MOST_POINTS
from slu.core.scales import FIRST_POINTS
from slu.core.split import SHARE
from slu.data.batches import Batch
from slu.gradients import Network
from slu.gradients.network import pull_back
from slu.gradients.positions import group_count

_REPEATS = 3
_PATIENCE = 5.0  # seconds, after which a figure is not measured again
_FITTED = 4  # batches of the fit that is timed; the first is left out


@dataclass(frozen=True)
class Passes:
    """Seconds of one batch.

    Attributes:
        points: b.
        forward: Of a forward pass without gradients.
        backward: Of a forward and a backward pass, as a training step has them.
    """

    points: int
    forward: float
    backward: float

    def gradients(self, count: int) -> float:
        """Of so many gradients per point: a forward pass, and as many backward passes."""
        return self.forward + count * max(0.0, self.backward - self.forward)


@dataclass(frozen=True)
class Timing:
    """Seconds of one batch, all measured in one call, so that their ratios hold whatever else the machine does.

    Attributes:
        passes: Of the plain network.
        query: Of `score(batch)`, of all its positions where outputs have some.
        fit: Of a batch in the midst of a fit.
        start: Of a fit whatever its number of points: the sketch, the first plans of gradients, the subspace.
        groups: Of positions of an input, each of which a query measures; 1 without positions.
    """

    passes: Passes
    query: float
    fit: float
    start: float
    groups: int = 1

    def query_seconds(self, points: int) -> float:
        """Of the scores of so many points, in batches of this size."""
        return self.query * points / self.passes.points

    def fit_seconds(self, points: int) -> float:
        """Of a default fit to so many points, in batches of this size.

        The scale takes one gradient more for each of its points, and calibration one query for each of its own.
        """
        calibrated = min(MOST_POINTS, int(SHARE * points))
        scaled, calibrating = self._rows(1), self._rows(-(-MOST_POINTS // max(1, calibrated)))
        seconds = self.fit * (points - calibrated) + scaled * min(FIRST_POINTS, points) + calibrating * calibrated
        return self.start + seconds / self.passes.points

    def _rows(self, positions: int) -> float:
        """Of a batch of which so many positions per input are measured: of one about as a batch in a fit takes."""
        if self.groups == 1:
            return self.query
        return min(self.query, max(self.fit, self.query * positions / self.groups))


def first_batch(network: Network, data: Any) -> Batch:
    """The first batch of what a user gave, read as a fit reads it."""
    return next(iter(network.batches(data, once=True)))


def measure_passes(network: Network, data: Any) -> Passes:
    """The seconds of the plain network on a batch, or on the first of a loader.

    Cost: five forward passes, and four forward and backward passes.
    """
    with network.evaluating():
        batch = first_batch(network, data)
        with torch.no_grad():
            points = len(network.outputs(batch.inputs))
            forward = typical_seconds(lambda: network.outputs(batch.inputs))
        backward = typical_seconds(lambda: _step(network, batch))
    return Passes(points, forward, backward)


def measure(method: SLU, data: Any) -> Timing:
    """The seconds of a method on a batch, or on the first of a loader.

    Cost: four queries, a fit to the batch and one to four more of it, and four forward and backward passes. Nothing
    is kept.
    """
    network = method.network
    with network.evaluating():
        batch = first_batch(network, data)
    again = [(batch.inputs, batch.targets)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # calibrated on the points that were fitted: the scores are not used
        passes = measure_passes(network, again)
        began = time.perf_counter()
        score = method.fit(again, calibration=again, progress=False)
        whole = time.perf_counter() - began
        query = typical_seconds(lambda: score(again, progress=False))
        source = _Watched(again[0])
        score.partial_fit(source, calibration=False, progress=False)
    fit = source.seconds_per_batch
    timing = Timing(passes, query, fit, 0.0, group_count(network.positions))
    # Of the whole a batch was fitted, scaled and calibrated on, with all of its positions if its points are few.
    others = fit + timing._rows(1) + timing._rows(-(-MOST_POINTS // passes.points))
    return replace(timing, start=max(0.0, whole - others))


def typical_seconds(action: Callable[[], Any]) -> float:
    """The median of a few calls after one that is not counted; of slow ones fewer are made."""
    began = time.perf_counter()
    action()
    seconds: list[float] = []
    while len(seconds) < _REPEATS and (not seconds or time.perf_counter() - began < _PATIENCE):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def duration(seconds: float) -> str:
    """As one would say it, with two digits.

    >>> duration(0.00123), duration(0.5), duration(9.87), duration(200), duration(90_000)
    ('1.2 ms', '500 ms', '9.9 s', '3.3 min', '25 h')
    """
    for unit, size, most in (("ms", 1e-3, 1.0), ("s", 1.0, 100.0), ("min", 60.0, 6_000.0)):
        if seconds < most:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 3600)} h"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.1 else f"{value:.2g}"


def _step(network: Network, batch: Batch) -> None:
    leaves = {name: value.requires_grad_() for name, value in network.parameters().items()}
    outputs = network.outputs(batch.inputs, leaves)
    pull_back(outputs, leaves, torch.ones_like(outputs))


class _Watched:
    """An iterator over the same batch a few times that notes when each is asked for."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._asked: list[float] = []

    def __iter__(self) -> _Watched:
        return self

    def __next__(self) -> Any:
        self._asked.append(time.perf_counter())
        slow = len(self._asked) > 2 and self._asked[-1] - self._asked[0] > _PATIENCE
        if slow or len(self._asked) > _FITTED:
            raise StopIteration
        return self._batch

    @property
    def seconds_per_batch(self) -> float:
        """Between the requests for two batches, without the first, of which plans are made."""
        return (self._asked[-1] - self._asked[1]) / (len(self._asked) - 2)
