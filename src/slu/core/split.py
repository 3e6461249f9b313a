"""The calibration set: which points are fitted, and which the score is calibrated on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from slu.core.calibration import (
    GIVEN,
    HELD_OUT,
    LEAST_POINTS,
    NONE_BY_CONTENT,
    NONE_HELD_OUT,
    SCORES_ONLY,
    CalibrationState,
    Read,
)
from slu.core.directions import USUAL, Outputs
from slu.core.settings import Settings
from slu.data import ComparedData, HoldOut, Reservoir, collected, known_points
from slu.data.structure import Inputs
from slu.errors import DataError, SettingError
from slu.gradients import Network

MOST_POINTS = 1000
"""Of the calibration set, held out or given: enough to meet a rate of 5 % within 0.7 %."""

SHARE = 0.1
"""Of the data that is held out; at least LEAST_POINTS, at most MOST_POINTS. None where so many would be more than half
of the data, or points that the rank needs."""


@dataclass(frozen=True, eq=False)
class Split:
    """Which points are fitted, and which are the calibration set.

    Attributes:
        data: To fit on.
        network, seed: The network that is called on the points, and the seed of the choice.
        source: HELD_OUT, GIVEN or None.
        given: A loader of calibration points, or the reservoir of an earlier fit.
        before: The points that an earlier fit held out.
        why: The reason why there will be no calibration.
        outputs: Which rows of the calibration points will be measured.
    """

    data: Any
    network: Network
    seed: int
    source: str | None
    given: Any = None
    before: Reservoir | None = None
    why: str = ""
    outputs: Outputs = USUAL

    @property
    def held_out(self) -> float:
        """Once the data have been read: points with u (`slu.data.holdout`) below this were not fitted."""
        reservoir = self.data.reservoir if isinstance(self.data, HoldOut) else None
        return 0.0 if reservoir is None else reservoir.threshold

    def prepared(self) -> Split:
        """The same with given points read, so that errors in them are raised before a long fit.

        Raises:
            DataError: Empty, not finite, or not valid inputs of the network.
        """
        if self.source != GIVEN or isinstance(self.given, Reservoir):
            return self
        return replace(self, given=_all_of(self.given, self.network, self.seed))

    def calibrated(self, read: Read, progress: bool | None) -> CalibrationState:
        """The calibration, once the fit is done."""
        if self.source is None:
            return CalibrationState(None, self.why)
        if self.source == GIVEN:
            return CalibrationState.of(read, self.prepared().given, GIVEN, 0.0, self.outputs, progress)
        if not self.held_out:
            return CalibrationState(None, NONE_HELD_OUT)
        reservoir = self.data.reservoir if self.before is None else self.before.joined(self.data.reservoir, once=True)
        if not len(reservoir):
            return CalibrationState(None, NONE_BY_CONTENT, reservoir.threshold)
        return CalibrationState.of(read, reservoir, HELD_OUT, reservoir.threshold, self.outputs, progress)


def compared(network: Network, data: Any, what: str) -> ComparedData:
    """The data, compared with what was read of them before; `what` they are is said in messages."""
    return ComparedData(data, network.reader, _Count(network), what)


def split(
    settings: Settings, loader: Any, calibration: Any, *,
    before: CalibrationState | None = None, fitted_at_least: Callable[[int], int] = lambda _: 0,
) -> Split:  # fmt: skip
    """Which of the data are fitted, and which points a score is calibrated on.

    Args:
        settings: Of the fit: the network that is called on the points, the seed of the choice, the curvature.
        loader: The data.
        calibration: None to hold points out, False to fit on all, or a loader of calibration points.
        before: The calibration so far of a fit that is continued; with `calibration=None` its choice is kept.
        fitted_at_least: How many points must not be held out, from the number of outputs.
    """
    network, seed = settings.network, settings.seed
    if calibration is False:
        return Split(loader, network, seed, None, why="it was fitted with calibration=False")
    if calibration is not None:
        return Split(loader, network, seed, GIVEN, calibration, outputs=USUAL if before is None else before.outputs)
    if before is not None and before.why != NONE_HELD_OUT:  # of too few points; the new ones may be enough
        return replace(_split_as_before(settings, loader, before), outputs=before.outputs)
    known = known_points(loader, network.reader)
    if known is not None and known < 2 * LEAST_POINTS:
        return Split(loader, network, seed, HELD_OUT)
    count = _Count(network)

    def least_left(points: int) -> int:
        left = max(math.ceil(points / 2), fitted_at_least(count.outputs))
        return left if points - left >= LEAST_POINTS else points

    rule = Reservoir(1.0, MOST_POINTS, SHARE, LEAST_POINTS)
    data = HoldOut(loader, rule, seed, count, least_left, reader=network.reader, targets=settings.by_targets)
    return Split(data, network, seed, HELD_OUT)


def _split_as_before(settings: Settings, loader: Any, before: CalibrationState) -> Split:
    network, seed = settings.network, settings.seed
    given = before.calibration is not None and before.calibration.source == GIVEN
    if given and before.reservoir is not None:
        return Split(loader, network, seed, GIVEN, before.reservoir)
    if before.held_out:
        # Not a larger share than before: what was fitted then must not be held out now.
        others = [] if before.reservoir is None else [point.u for point in before.reservoir.points]
        rule = Reservoir(before.held_out, MOST_POINTS, SHARE, LEAST_POINTS, others)
        data = HoldOut(loader, rule, seed, _Count(network), reader=network.reader, targets=settings.by_targets)
        return Split(data, network, seed, HELD_OUT, before=before.reservoir)
    return Split(loader, network, seed, None, why=before.why or f"it was fitted further after loading: {SCORES_ONLY}")


def merged(states: Sequence[CalibrationState], read: Read, progress: bool | None = False) -> CalibrationState:
    """The pooled points of several fits, scored again by the rows of the first: scores depend on the subspace."""
    held_out = min(state.held_out for state in states)
    reservoir, sources = None, set()
    for place, state in enumerate(states):
        if state.reservoir is None or state.calibration is None:
            why = state.why or f"it was loaded: {SCORES_ONLY}"
            why = f"score {place} of those it was merged from has no points to score: {why}"
            return CalibrationState(None, why, held_out)
        # Shards are of other points, however equal; given points may be the same for all of them.
        once = state.calibration.source == GIVEN
        reservoir = state.reservoir if reservoir is None else reservoir.joined(state.reservoir, once=once)
        sources.add(state.calibration.source)
    if reservoir is None or len(sources) > 1:
        return CalibrationState(None, "it was merged from scores calibrated on held-out and on given points", held_out)
    if not len(reservoir):
        return CalibrationState(None, "none of the points that its shards held out was held out by all", held_out)
    (source,) = sources
    return CalibrationState.of(read, reservoir, source, min(held_out, reservoir.threshold), states[0].outputs, progress)


def recalibrated(
    read: Read, settings: Settings, loader: Any, *,
    threshold: float, held_out: bool, outputs: Outputs = USUAL, progress: bool | None,
) -> CalibrationState:  # fmt: skip
    """The calibration on the points of a loader, or on those of them below the threshold that were held out."""
    network, seed = settings.network, settings.seed
    if not held_out:
        reservoir = _all_of(loader, network, seed)
        return CalibrationState.of(read, reservoir, GIVEN, threshold, outputs, progress)
    if not threshold:
        raise SettingError(
            "the fit held no points out, or its file is of an earlier version, which chose them otherwise, so there "
            "are none to calibrate on; give points it has not seen"
        )
    reservoir = _collected(loader, Reservoir(threshold, MOST_POINTS), network, seed, targets=settings.by_targets)
    if not len(reservoir):
        raise DataError("none of these points was held out of the fit; give the data that it was fitted on")
    return CalibrationState.of(read, reservoir, HELD_OUT, threshold, outputs, progress)


def _all_of(loader: Any, network: Network, seed: int) -> Reservoir:
    reservoir = _collected(loader, Reservoir(float("inf"), MOST_POINTS), network, seed)
    if not len(reservoir):
        raise DataError("the calibration points cannot be separated: their inputs hold no tensor with a row per point")
    return reservoir


def _collected(loader: Any, reservoir: Reservoir, network: Network, seed: int, *, targets: bool = False) -> Reservoir:
    device = network.selection.device
    with network.evaluating():
        return collected(loader, reservoir, seed, _Count(network), device, network.reader, targets=targets)


class _Count:
    """How many points the inputs of a batch are, from the network's outputs; remembers how many outputs it has."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.outputs = 1

    @torch.no_grad()
    def __call__(self, inputs: Inputs) -> int:
        points, self.outputs = self._network.outputs(inputs).shape
        return points
