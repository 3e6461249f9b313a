"""The calibration set: which points are fitted, and which the score is calibrated on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slu.artifacts.checkpoint import CheckpointedRun
from slu.core.calibration import GIVEN, HELD_OUT
from slu.core.calibration_state import NONE_AT_HAND, NONE_BY_CONTENT, NONE_HELD_OUT, SCORES_ONLY, CalibrationState, Read
from slu.core.concerns import LEAST_POINTS, MOST_POINTS
from slu.core.directions import USUAL, Outputs
from slu.core.settings import Settings
from slu.core.trust import PredictionSums
from slu.data import ComparedData, HeldOut, HoldOut, Reservoir, Shard, collected, known_points
from slu.data.dealing import check_dealt, places
from slu.data.structure import Inputs
from slu.errors import DataError, MismatchError, SettingError
from slu.gradients import Network
from slu.parameters import difference
from slu.processes import ALONE, Processes

SHARE = 0.1
"""Of the data that is held out; at least LEAST_POINTS, at most MOST_POINTS. None where so many would be more than half
of the data, or points that the rank needs."""


class Chosen(NamedTuple):
    """The calibration points, None where there are none, and which points are not fitted."""

    points: Reservoir | None
    held_out: HeldOut


@dataclass(frozen=True, eq=False)
class Split:
    """Which points are fitted, and which are the calibration set.

    Attributes:
        data: To fit on.
        network, seed: The network that is called on the points, and the seed of the choice.
        source: HELD_OUT, GIVEN or None.
        given: A loader of calibration points, or the reservoir of an earlier fit.
        before: The points that an earlier fit held out; None where a file has only their numbers.
        earlier: Which points that fit held out; None where there was none.
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
    earlier: HeldOut | None = None
    why: str = ""
    outputs: Outputs = USUAL
    processes: Processes = ALONE

    def prepared(self) -> Split:
        """The same with given points read, so that errors in them are raised before a long fit.

        Raises:
            DataError: Empty, not finite, or not valid inputs of the network.
        """
        if self.source != GIVEN or isinstance(self.given, Reservoir):
            return self
        return replace(self, given=_all_of(self.given, self.network, self.seed, self.processes))

    def read_if(self, unread: bool, part: Shard | None) -> None:
        """Read the data of a fit that was stopped after its last step: points are to be held out, and all compared."""
        if all(self.processes.gathered("whether nothing was read", unread)):
            _read_through(self.network, self.data)
            if part is not None:
                part.check()

    def chosen(self) -> Chosen:
        """What was chosen, once the data have been read."""
        if self.source != HELD_OUT:
            return Chosen(self.prepared().given, HeldOut())
        points = self.data.reservoir if isinstance(self.data, HoldOut) else None
        if points is None or not points.threshold:
            return Chosen(None, HeldOut())
        points = points.pooled(self.processes, given=False)
        held_out = HeldOut.of(points)
        held_out = held_out if self.earlier is None else self.earlier.joined(held_out, MOST_POINTS, once=True)
        points = points if self.before is None else self.before.joined(points, once=True)
        return Chosen(points.within(held_out), held_out)

    def calibrated(self, read: Read, chosen: Chosen, progress: bool | None) -> CalibrationState:
        """The calibration, once the fit is done."""
        points, held_out = chosen
        if self.source is None or points is None:
            return CalibrationState(None, self.why or NONE_HELD_OUT)
        if not len(points):
            return CalibrationState(None, NONE_AT_HAND if held_out.numbers else NONE_BY_CONTENT, held_out)
        read = dealt_out(read, self.processes)
        return CalibrationState.of(read, points, self.source, held_out, self.outputs, progress)


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
    earlier = None if before is None else HeldOut(1.0, None)
    return Split(data, network, seed, HELD_OUT, earlier=earlier, processes=processes)


def _split_as_before(settings: Settings, loader: Any, before: CalibrationState, processes: Processes) -> Split:
    network, seed = settings.network, settings.seed
    given = before.calibration is not None and before.calibration.source == GIVEN
    if given and before.reservoir is not None:
        return Split(loader, network, seed, GIVEN, before.reservoir)
    earlier = before.held_out
    if earlier.threshold:
        # Not a larger share than before: what was fitted then must not be held out now.
        rule = Reservoir(earlier.threshold, MOST_POINTS, SHARE, LEAST_POINTS, earlier.numbers or ())
        data = HoldOut(
            loader, rule, seed, _Count(network),
            reader=network.reader, targets=settings.by_targets, processes=processes,
        )  # fmt: skip
        return Split(data, network, seed, HELD_OUT, before=before.reservoir, earlier=earlier)
    return Split(loader, network, seed, None, why=before.why or f"it was fitted further after loading: {SCORES_ONLY}")


def merged(states: Sequence[CalibrationState], read: Read, progress: bool | None = False) -> CalibrationState:
    """The pooled points of several fits, scored again by the rows of the first: scores depend on the subspace."""
    # Shards are of other points, however equal.
    held_out = reduce(partial(HeldOut.joined, most=MOST_POINTS, once=False), (state.held_out for state in states))
    reservoir, sources = None, set()
    for place, state in enumerate(states):
        if state.reservoir is None or state.calibration is None:
            why = state.why or f"it was loaded: {SCORES_ONLY}"
            why = f"score {place} of those it was merged from has no points to score: {why}"
            return CalibrationState(None, why, held_out)
        once = state.calibration.source == GIVEN  # which may be the same for all of them
        reservoir = state.reservoir if reservoir is None else reservoir.joined(state.reservoir, once=once)
        sources.add(state.calibration.source)
    if reservoir is None or len(sources) > 1:
        why = "it was merged from scores calibrated on held-out and on given points"
        return CalibrationState(None, why, held_out)
    if not len(reservoir):
        why = "none of the points that its shards held out was held out by all"
        return CalibrationState(None, why, held_out)
    (source,) = sources
    reservoir = reservoir.within(held_out) if source == HELD_OUT else reservoir
    return CalibrationState.of(read, reservoir, source, held_out, states[0].outputs, progress)


def recalibrated(
    read: Read, settings: Settings, loader: Any, before: CalibrationState, *,
    held_out: bool, outputs: Outputs = USUAL, progress: bool | None, processes: Processes = ALONE,
) -> CalibrationState:  # fmt: skip
    """The calibration on the points of a loader, or on those of them that the fit held out."""
    read, how = dealt_out(read, processes), (before.held_out, outputs, progress)
    if not held_out:
        return CalibrationState.of(read, _all_of(loader, settings.network, settings.seed, processes), GIVEN, *how)
    if not before.held_out.threshold:
        raise SettingError(
            "the fit held no points out, or it went on with calibration=False or given points, or its file is of an "
            "earlier version, which chose them otherwise, so none are known; give points it has not seen"
        )
    if before.held_out.numbers is None:
        raise SettingError(
            "the fit began with too few points to hold any out, and fitted them; which of the data it held out later "
            "cannot be told from these, so give points it has not seen"
        )
    reservoir = _held_out_again(settings, loader, before.held_out, processes)
    if not len(reservoir):
        raise DataError(
            "none of these points was held out of the fit; give the data that it was fitted on, with the same targets "
            "if these leave out positions by -100, or points it has not seen with held_out=False"
        )
    return CalibrationState.of(read, reservoir, HELD_OUT, *how)


def _held_out_again(settings: Settings, loader: Any, before: HeldOut, processes: Processes) -> Reservoir:
    """What a fit held out of its data, as often as it did: every call, shard and process numbered copies anew."""
    numbers = before.numbers or ()
    rule, how = Reservoir(before.threshold, MOST_POINTS), {"targets": settings.by_targets, "only": numbers}
    again = _collected(loader, rule, settings.network, settings.seed, **how)
    again, count = again.pooled(processes, given=False, once=True), Counter(numbers)
    return replace(again, points=[point for point in again.points for _ in range(count[point.u])])


def resumed(
    read: Read, before: CalibrationState, parts: Split, settings: Settings, run: CheckpointedRun, progress: bool | None
) -> CalibrationState | None:
    """Compare the data with those of a finished fit; the calibration of one that was stopped while it calibrated."""
    network, loader = settings.network, parts.data.loader if isinstance(parts.data, HoldOut) else parts.data
    calibration = None
    if before.stopped and parts.source == HELD_OUT and before.held_out.threshold:  # one pass collects its points again
        again = _held_out_again(settings, loader, before.held_out, parts.processes)
        calibration = parts.calibrated(read, Chosen(again, before.held_out), progress)
    elif run.compares:
        _read_through(network, loader)
    if before.stopped and calibration is None:
        calibration = parts.calibrated(read, parts.chosen(), progress)
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
    settings: Settings, loader: Any, calibration: Any, processes: Processes, *, score: Any = None, **same: Any
) -> tuple[Any, Any, Shard | None]:
    """This process' part of the data and of calibration points; the first again where there are several processes.

    Args:
        settings, loader, calibration: Of the fit.
        processes: Those that share the data.
        score: That goes on, the same in all of them.
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
    reads = {"estimator": settings.estimator, "ridge": settings.ridge}
    if score is not None:
        processes.check_close(score.state.numbers)
        same["score"] = _held_out(score.state.calibration)
    processes.check_same(identity | {"calibration": kind} | reads | same)
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


def _held_out(calibration: CalibrationState) -> str:
    """Which points were held out: processes that go on from a score must have that in common as well."""
    points = None if calibration.reservoir is None else hash(tuple(calibration.reservoir.numbers))
    threshold, numbers = calibration.held_out
    own = f"held out below {threshold}, {None if numbers is None else hash(numbers)}"
    return f"{calibration.why or 'calibrated'}, {own}, {points}"


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


def _collected(loader: Any, reservoir: Reservoir, network: Network, seed: int, **how: Any) -> Reservoir:
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
