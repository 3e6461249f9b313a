"""The calibration set: which points are fitted, and which the score is calibrated on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from slu.artifacts.checkpoint import CheckpointedRun
from slu.core.calibration import (
    ALL_COPIES,
    FIRST_COPIES,
    GIVEN,
    HELD_OUT,
    LEAST_POINTS,
    NO_COPIES,
    NONE_BY_CONTENT,
    NONE_HELD_OUT,
    SCORES_ONLY,
    CalibrationState,
    Read,
)
from slu.core.directions import USUAL, Outputs
from slu.core.settings import Settings
from slu.core.state import FittedState
from slu.core.trust import PredictionSums
from slu.data import ComparedData, HoldOut, Reservoir, Shard, collected, known_points
from slu.data.dealing import check_dealt, places
from slu.data.structure import Inputs
from slu.errors import DataError, MismatchError, SettingError
from slu.gradients import Network
from slu.parameters import difference
from slu.processes import ALONE, Processes

MOST_POINTS = 1000
"""Of the calibration set, held out or given: enough to meet a rate of 5 % within 0.7 %."""

SHARE = 0.1
"""Of the data that is held out; at least LEAST_POINTS, at most MOST_POINTS. None where so many would be more than half
of the data, or points that the rank needs."""

_NONE_AGAIN = "its fit was interrupted while it calibrated, and which copies of its points were held out is not known"


@dataclass(frozen=True, eq=False)
class Split:
    """Which points are fitted, and which are the calibration set.

    Attributes:
        data: To fit on.
        network, seed: The network that is called on the points, and the seed of the choice.
        source: HELD_OUT, GIVEN or None.
        given: A loader of calibration points, or the reservoir of an earlier fit.
        before: The points that an earlier fit held out.
        earlier: Of which copies of a point it is known whether that fit held them out (`CalibrationState.copies`).
        why: The reason why there will be no calibration.
        outputs: Which rows of the calibration points will be measured.
        processes: Those that share the data.
    """

    data: Any
    network: Network
    seed: int
    source: str | None
    given: Any = None
    before: Reservoir | None = None
    earlier: str = ALL_COPIES
    why: str = ""
    outputs: Outputs = USUAL
    processes: Processes = ALONE

    @property
    def held_out(self) -> float:
        """Once the data have been read: points with u (`slu.data.holdout`) below this were not fitted."""
        reservoir = self.data.reservoir if isinstance(self.data, HoldOut) else None
        return 0.0 if reservoir is None else reservoir.threshold

    @property
    def copies(self) -> str:
        """Of which copies of a point it will be known whether they were held out (`CalibrationState.copies`)."""
        return FIRST_COPIES if self.earlier == ALL_COPIES and self.processes.size > 1 else self.earlier

    def prepared(self) -> Split:
        """The same with given points read, so that errors in them are raised before a long fit.

        Raises:
            DataError: Empty, not finite, or not valid inputs of the network.
        """
        if self.source != GIVEN or isinstance(self.given, Reservoir):
            return self
        return replace(self, given=_all_of(self.given, self.network, self.seed, self.processes))

    def calibrated(self, read: Read, progress: bool | None) -> CalibrationState:
        """The calibration, once the fit is done."""
        if self.source is None:
            return CalibrationState(None, self.why)
        read = dealt_out(read, self.processes)
        if self.source == GIVEN:
            return CalibrationState.of(read, self.prepared().given, GIVEN, 0.0, self.copies, self.outputs, progress)
        if not self.held_out:
            return CalibrationState(None, NONE_HELD_OUT)
        reservoir = self.data.reservoir.pooled(self.processes, given=False)
        reservoir = reservoir if self.before is None else self.before.joined(reservoir, once=True)
        if not len(reservoir):
            return CalibrationState(None, NONE_BY_CONTENT, reservoir.threshold, self.copies)
        how = HELD_OUT, reservoir.threshold, self.copies, self.outputs, progress
        return CalibrationState.of(read, reservoir, *how)


def compared(network: Network, data: Any, what: str) -> ComparedData:
    """The data, compared with what was read of them before; `what` they are is said in messages."""
    return ComparedData(data, network.reader, _Count(network), what)


def split(
    settings: Settings, loader: Any, calibration: Any, *,
    before: CalibrationState | None = None, fitted_at_least: Callable[[int], int] = lambda _: 0,
    processes: Processes = ALONE,
) -> Split:  # fmt: skip
    """Which of the data are fitted, and which points a score is calibrated on.

    Args:
        settings: Of the fit: the network that is called on the points, the seed of the choice, the curvature.
        loader: The data.
        calibration: None to hold points out, False to fit on all, or a loader of calibration points.
        before: The calibration so far of a fit that is continued; with `calibration=None` its choice is kept.
        fitted_at_least: How many points must not be held out, from the number of outputs.
        processes: Those that share the data.
    """
    network, seed = settings.network, settings.seed
    if calibration is False:
        why = "it was fitted with calibration=False"
        return Split(loader, network, seed, None, why=why, processes=processes)
    if calibration is not None:
        outputs = USUAL if before is None else before.outputs
        return Split(loader, network, seed, GIVEN, calibration, outputs=outputs, processes=processes)
    if before is not None and before.why != NONE_HELD_OUT:  # of too few points; the new ones may be enough
        again = _split_as_before(settings, loader, before, processes)
        return replace(again, outputs=before.outputs, processes=processes)
    known = known_points(loader, network.reader)
    if known is not None and known < 2 * LEAST_POINTS:
        return Split(loader, network, seed, HELD_OUT, processes=processes)
    count = _Count(network)

    def least_left(points: int) -> int:
        outputs = max(processes.gathered("outputs", count.outputs))
        left = max(math.ceil(points / 2), fitted_at_least(outputs))
        return left if points - left >= LEAST_POINTS else points

    rule = Reservoir(1.0, MOST_POINTS, SHARE, LEAST_POINTS)
    data = HoldOut(
        loader, rule, seed, count, least_left, reader=network.reader, targets=settings.by_targets,
        processes=processes, first_points=getattr(settings.scale, "points", None) or 0,
    )  # fmt: skip
    # What a fit before has fitted of too few points may come again.
    earlier = ALL_COPIES if before is None else NO_COPIES
    return Split(data, network, seed, HELD_OUT, earlier=earlier, processes=processes)


def _split_as_before(settings: Settings, loader: Any, before: CalibrationState, processes: Processes) -> Split:
    network, seed = settings.network, settings.seed
    given = before.calibration is not None and before.calibration.source == GIVEN
    if given and before.reservoir is not None:
        return Split(loader, network, seed, GIVEN, before.reservoir)
    if before.held_out:
        # Not a larger share than before: what was fitted then must not be held out now.
        others = [] if before.reservoir is None else [point.u for point in before.reservoir.points]
        rule = Reservoir(before.held_out, MOST_POINTS, SHARE, LEAST_POINTS, others)
        data = HoldOut(
            loader, rule, seed, _Count(network),
            reader=network.reader, targets=settings.by_targets, processes=processes,
        )  # fmt: skip
        earlier = NO_COPIES if before.copies == NO_COPIES else FIRST_COPIES
        return Split(data, network, seed, HELD_OUT, before=before.reservoir, earlier=earlier)
    return Split(loader, network, seed, None, why=before.why or f"it was fitted further after loading: {SCORES_ONLY}")


def merged(states: Sequence[CalibrationState], read: Read, progress: bool | None = False) -> CalibrationState:
    """The pooled points of several fits, scored again by the rows of the first: scores depend on the subspace."""
    held_out = min(state.held_out for state in states)
    copies = NO_COPIES if NO_COPIES in {state.copies for state in states} else FIRST_COPIES
    reservoir, sources = None, set()
    for place, state in enumerate(states):
        if state.reservoir is None or state.calibration is None:
            why = state.why or f"it was loaded: {SCORES_ONLY}"
            why = f"score {place} of those it was merged from has no points to score: {why}"
            return CalibrationState(None, why, held_out, copies)
        # Shards are of other points, however equal; given points may be the same for all of them.
        once = state.calibration.source == GIVEN
        reservoir = state.reservoir if reservoir is None else reservoir.joined(state.reservoir, once=once)
        sources.add(state.calibration.source)
    if reservoir is None or len(sources) > 1:
        why = "it was merged from scores calibrated on held-out and on given points"
        return CalibrationState(None, why, held_out, copies)
    if not len(reservoir):
        why = "none of the points that its shards held out was held out by all"
        return CalibrationState(None, why, held_out, copies)
    (source,) = sources
    how = source, min(held_out, reservoir.threshold), copies, states[0].outputs, progress
    return CalibrationState.of(read, reservoir, *how)


def recalibrated(
    read: Read, settings: Settings, loader: Any, before: CalibrationState, *,
    held_out: bool, outputs: Outputs = USUAL, progress: bool | None, processes: Processes = ALONE,
) -> CalibrationState:  # fmt: skip
    """The calibration on the points of a loader, or on those of them that the fit held out."""
    read, how = dealt_out(read, processes), (before.held_out, before.copies, outputs, progress)
    if not held_out:
        reservoir = _all_of(loader, settings.network, settings.seed, processes)
        return CalibrationState.of(read, reservoir, GIVEN, *how)
    if not before.held_out:
        raise SettingError(
            "the fit held no points out, or its file is of an earlier version, which chose them otherwise, so there "
            "are none to calibrate on; give points it has not seen"
        )
    if before.copies == NO_COPIES:
        raise SettingError(
            "the fit began with too few points to hold any out, and fitted them; which of the data it held out later "
            "cannot be told from these, so give points it has not seen"
        )
    reservoir = _held_out_again(settings, loader, before, processes)
    if not len(reservoir):
        several = "" if before.copies == ALL_COPIES else (
            ", or each comes more than once, and of its copies it is known only of the first in every call, shard or "
            "process whether it was"
        )  # fmt: skip
        raise DataError(
            f"none of these points was held out of the fit{several}; give the data that it was fitted on, or points it "
            "has not seen with held_out=False"
        )
    return CalibrationState.of(read, reservoir, HELD_OUT, *how)


def _held_out_again(settings: Settings, loader: Any, before: CalibrationState, processes: Processes) -> Reservoir:
    """What a fit held out of its data.

    Every call, shard and process numbers the copies of a point anew, so that where there were several, or are here, the
    second copy in all data may be the first that one of them saw. All of them held out the first, or none did.
    """
    once = before.copies != ALL_COPIES or processes.size > 1
    rule, how = Reservoir(before.held_out, MOST_POINTS), {"targets": settings.by_targets, "once": once}
    reservoir = _collected(loader, rule, settings.network, settings.seed, **how)
    return reservoir.pooled(processes, given=False, once=once)


def resumed(
    read: Read, before: CalibrationState, parts: Split, settings: Settings, run: CheckpointedRun, progress: bool | None
) -> CalibrationState | None:
    """Compare the data with those of a finished fit; the calibration of one that was stopped while it calibrated."""
    network, loader = settings.network, parts.data.loader if isinstance(parts.data, HoldOut) else parts.data
    calibration = None
    if before.stopped and parts.source == HELD_OUT and before.held_out:  # one pass collects its points again
        reservoir, how = _held_out_again(settings, loader, before, parts.processes), (before.held_out, before.copies)
        if len(reservoir):
            read = dealt_out(read, parts.processes)
            calibration = CalibrationState.of(read, reservoir, HELD_OUT, *how, USUAL, progress)
        else:
            calibration = CalibrationState(None, _NONE_AGAIN, *how)
    elif run.compares:
        _read_through(network, loader)
    if before.stopped and calibration is None:
        calibration = parts.prepared().calibrated(read, progress)
    elif calibration is None and run.compares and parts.source == GIVEN:
        _read_through(network, parts.given)
    run.check_read()
    return calibration


def _read_through(network: Network, data: Any) -> None:
    """Read data that are compared with those of an earlier run."""
    with network.evaluating():
        for _ in network.batches(data, once=True):
            pass


def shards(
    settings: Settings, loader: Any, calibration: Any, processes: Processes, **same: Any
) -> tuple[Any, Any, Shard | None]:
    """This process' part of the data and of calibration points; the first again where there are several processes.

    Args:
        settings, loader, calibration: Of the fit.
        processes: Those that share the data.
        same: What else must be the same in all of them.

    Raises:
        MismatchError: Another process has other settings or weights.
        DataError: The data were dealt out to another number of processes.
    """
    if processes.size == 1:
        return loader, calibration, None
    identity = settings.identity(None)
    weights = identity.pop("weights")
    kind = calibration if calibration is None or calibration is False else "points"
    processes.check_same(identity | {"calibration": kind} | same)
    for rank, other in enumerate(processes.gathered("weights", weights)):
        if differs := difference(weights, other):
            raise MismatchError(
                f"process {rank} has other weights or buffers than process {processes.rank}: {differs}. Give all the "
                "same; after training with DistributedDataParallel the statistics of BatchNorm differ unless they are "
                "broadcast, or SyncBatchNorm kept them together"
            )
    given = calibration is not None and calibration is not False
    for data in (loader, calibration) if given else (loader,):
        check_dealt(data, processes.size)
    part = shard(settings.network, loader, processes)
    return part, shard(settings.network, calibration, processes) if given else calibration, part


def summary(state: FittedState) -> str:
    """What several processes must have in common to go on from a score; those of other data are merged instead."""
    calibration, values = state.calibration, state.subspace.eigenvalues
    sizes = [] if values is None else [float(values.max()), float((values**2).sum())]
    size = ", ".join(f"{each:.5g}" for each in [state.trace or 0.0, *sizes])  # not to the bits: machines may differ
    points = None if calibration.reservoir is None else hash(tuple(calibration.reservoir.numbers))
    held_out = f"held out below {calibration.held_out}, {calibration.copies} copies"
    return f"of {state.points} points, curvature {size}, {calibration.why or 'calibrated'}, {held_out}, {points}"


def shard(network: Network, data: Any, processes: Processes) -> Shard:
    """This process' part of the data."""
    own = places(data)
    told = processes.gathered("known points", known_points(data, network.reader) if own is None else len(own))
    known = None if None in told else sum(told)
    return Shard(data, network.reader, _Count(network), processes, known)


def dealt_out(read: Read, processes: Processes) -> Read:
    """The same scores of batches, of which every process computes its part."""
    if processes.size == 1:
        return read

    def read_part(
        data: Sequence[Any], outputs: Outputs, progress: bool | None, predicted: PredictionSums | None, inputs: int
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        own, sums = [], PredictionSums()
        for batch in data[processes.rank :: processes.size]:
            scores, distances = read([batch], outputs, progress, None if predicted is None else sums, inputs)
            own.append(
                ({name: each.cpu() for name, each in scores.items()}, None if distances is None else distances.cpu())
            )
        told = processes.gathered("scores of calibration points", (own, sums))
        if predicted is not None:
            for _, each in told:
                predicted.add(each)
        parts = [told[place % processes.size][0][place // processes.size] for place in range(len(data))]
        scores = {name: torch.cat([each[name] for each, _ in parts]) for name in parts[0][0]}
        return scores, None if parts[0][1] is None else torch.cat([each for _, each in parts])

    return read_part


def _all_of(loader: Any, network: Network, seed: int, processes: Processes = ALONE) -> Reservoir:
    reservoir = _collected(loader, Reservoir(float("inf"), MOST_POINTS), network, seed)
    reservoir = reservoir.pooled(processes, given=True)
    if not len(reservoir):
        raise DataError("the calibration points cannot be separated: their inputs hold no tensor with a row per point")
    return reservoir


def _collected(loader: Any, reservoir: Reservoir, network: Network, seed: int, **how: bool) -> Reservoir:
    device = network.selection.device
    with network.evaluating():
        return collected(loader, reservoir, seed, _Count(network), device, network.reader, **how)


class _Count:
    """How many points the inputs of a batch are, from the network's outputs; remembers how many outputs it has."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.outputs = 1

    @torch.no_grad()
    def __call__(self, inputs: Inputs) -> int:
        points, self.outputs = self._network.outputs(inputs).shape
        return points
