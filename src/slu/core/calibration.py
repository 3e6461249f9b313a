"""The calibration set: how its points are chosen, their scores, and p-values and thresholds from them.

Letters: m calibration points, with the scores c; α the rate of false alarms. An exchangeable fresh point has every
rank among them with equal probability, so p = (1 + #{c ≥ score}) / (1 + m) is at most α with a probability of at
most α (conformal prediction), for any network and any score.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from slu.checks import positive
from slu.core.directions import ALL, USUAL, Outputs, from_plain, to_plain
from slu.core.readout import READINGS
from slu.core.standard import ANGLE, COMBINED, DISTANCE, LayerScales, Standard
from slu.data import HoldOut, Reservoir, collected, known_points
from slu.data.batches import Inputs
from slu.errors import DamagedFileError, DataError, MismatchError, SettingError, unknown
from slu.gradients import Network

MOST_POINTS = 1000
"""Of the calibration set, held out or given: enough to meet a rate of 5 % within 0.7 %."""

SHARE = 0.1
"""Of the data that is held out, up to MOST_POINTS."""

LEAST_POINTS = 200
"""With fewer points none are held out: a tenth would be fewer than the 19 that a rate of 5 % requires."""

HELD_OUT, GIVEN = "held out", "given"
_STOPPED = "its fit was interrupted while it calibrated"
_SCORES_ONLY = "a file has the scores of calibration points, not the points"

Read: TypeAlias = Callable[..., tuple[dict[str, Tensor], Tensor | None]]
"""Scores of points by reading, and the distances of their layers' inputs: `SluScore.read_uncalibrated`."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Calibration:
    """The scores of points that were not in the fit, by reading.

    Attributes:
        scores: (m,) sorted, float64, on the CPU, by reading, the combined one included.
        standard: Standardizes the views of the combined reading.
        source: "held out" of the fitted data or "given".
        outputs: Which rows of the points were measured; scores of other rows do not compare with these.

    Cost: 6 m numbers; m is at most 1,000.
    """

    scores: Mapping[str, Tensor]
    standard: Standard
    source: str
    outputs: Outputs = USUAL

    @classmethod
    def of(
        cls, scores: Mapping[str, Tensor], source: str, outputs: Outputs = USUAL, distances: Tensor | None = None
    ) -> Calibration:
        """From (m,) scores by reading and (m, 2 L) squared distances, in any order, all of the same rows.

        Raises:
            DataError: A score is not finite.
        """
        wide = {name: values.detach().double().cpu() for name, values in scores.items()}
        if not all(bool(torch.isfinite(values).all()) for values in wide.values()):
            raise DataError("scores of calibration points are not finite; look for points with extreme inputs")
        layers = None
        if distances is not None:
            layers = LayerScales.of(distances)
            farthest = {name: layers.farthest(distances, name).detach().cpu() for name in (DISTANCE, ANGLE)}
            wide |= {name: values for name, values in farthest.items() if not bool(values.isnan().any())}
        standard = Standard.of(wide, {name: READINGS[name].positive for name in wide}, layers)
        wide[COMBINED] = standard.combined(wide)
        return cls({name: values.sort().values for name, values in wide.items()}, standard, source, outputs)

    @property
    def points(self) -> int:
        """m."""
        return len(self.scores[COMBINED])

    def __str__(self) -> str:
        rows = f"outputs={self.outputs!r}"
        return f"{self.points:,} points, {self.source}, {rows}; p-values from {1 / (1 + self.points):.2g} up"

    def pvalue(self, scores: Tensor, reading: str) -> Tensor:
        """(1 + #{c ≥ score}) / (1 + m): float64, never 0, on the scores' device."""
        reached = torch.searchsorted(self._of(reading), scores.detach().double().cpu().contiguous())
        return ((1 + self.points - reached).double() / (1 + self.points)).to(scores.device)

    def percentile(self, scores: Tensor, reading: str) -> Tensor:
        """Per cent of the calibration points that score less."""
        below = torch.searchsorted(self._of(reading), scores.detach().double().cpu().contiguous())
        return (100 * below.double() / self.points).to(scores.device)

    def threshold(self, false_alarms: float, reading: str) -> float:
        """The score above which p ≤ α: the j-th largest calibration score, with j / (1 + m) just above α.

        Raises:
            SettingError: Not a rate, or one that needs more points; the message says how many.
        """
        rate = self.check_rate(false_alarms)
        values = self._of(reading)
        # The same comparison as in `flag`, so that the two agree in spite of rounding.
        pvalues = (1 + torch.arange(self.points + 1, dtype=torch.float64)) / (1 + self.points)
        reached = int((pvalues <= rate).sum())
        return -math.inf if reached > self.points else float(values[self.points - reached])

    def check_rate(self, false_alarms: float) -> float:
        """The rate, if m points suffice for it."""
        rate = positive("false_alarms", false_alarms)
        if rate > 1:
            raise SettingError(f"false_alarms is a share of fresh points, at most 1; got {false_alarms!r}")
        if rate < 1 / (1 + self.points):
            raise SettingError(
                f"false_alarms={rate:g} is below {1 / (1 + self.points):.3g}, the smallest p-value of {self.points} "
                f"calibration points; {math.ceil(round(1 / rate, 9)) - 1} points are needed: fit on "
                "more data, give points by fit(loader, calibration=...) or score.calibrate(...), or take a higher rate"
            )
        return rate

    def _of(self, reading: str) -> Tensor:
        if reading not in self.scores:
            if reading in READINGS:
                raise SettingError(f"the score is not calibrated by reading={reading!r}; call score.calibrate(loader)")
            raise unknown("reading", reading, self.scores)
        return self.scores[reading]

    def to_file(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A tensor (readings, m) and plain data, from which `from_file` restores it."""
        plain = {"readings": list(self.scores), "source": self.source, "outputs": to_plain(self.outputs)}
        plain |= self.standard.to_plain()
        return {"calibration": torch.stack(list(self.scores.values()))}, plain

    @classmethod
    def from_file(cls, values: Tensor | None, plain: Mapping[str, Any]) -> Calibration:
        """What `to_file` gave.

        Raises:
            DamagedFileError: They are inconsistent.
            MismatchError: It uses a reading that this version does not have.
        """
        names = plain["readings"]
        missing = sorted({name for view in plain["views"] for name in view} - set(READINGS))
        if missing:
            raise MismatchError(
                f"its combined reading uses {missing}, which this version of slu does not have; "
                "install the version that `slu inspect` names, or fit anew"
            )
        if values is None or values.dim() != 2 or len(values) != len(names) or not values.shape[1]:
            raise DamagedFileError("a calibration is in the header but not in the file, or of another shape; fit anew")
        values = values.double().cpu()
        # Unsorted scores would give wrong p-values without an error.
        if not bool(torch.isfinite(values).all()) or not bool((values.diff(dim=1) >= 0).all()):
            raise DamagedFileError("the calibration scores in the file are not sorted or not finite; fit anew")
        standard = Standard.from_plain(plain)
        # Before there was a choice, all rows were measured.
        outputs = from_plain(plain.get("outputs", ALL))
        return cls(dict(zip(names, values, strict=True)), standard, str(plain["source"]), outputs)


@dataclass(frozen=True, eq=False)
class CalibrationState:
    """The calibration of a score, or why it has none.

    Attributes:
        calibration: The calibration points' scores; None where there are none.
        why: The reason why there are none.
        held_out: Points with u (`slu.data.holdout`) below this were not in the fit; 0 if all were.
        reservoir: The points themselves, in the process that ran the fit; a file has only their scores.
        others: The scores of the same points by other rows than those of `calibration`, as far as they were needed.
    """

    calibration: Calibration | None = None
    why: str = "it was constructed without one"
    held_out: float = 0.0
    reservoir: Reservoir | None = None
    others: dict[Outputs, Calibration] = field(default_factory=dict)

    @classmethod
    def while_calibrating(cls, held_out: float) -> CalibrationState:
        """The state until the calibration points are scored, and after an interruption while they are."""
        return cls(None, _STOPPED, held_out)

    @property
    def stopped(self) -> bool:
        """Whether the fit is done but for its calibration."""
        return self.calibration is None and self.why == _STOPPED

    @classmethod
    def of(
        cls, read: Read, reservoir: Reservoir, source: str, held_out: float, outputs: Outputs, progress: bool | None
    ) -> CalibrationState:
        """The points of a reservoir, scored by a choice of rows: so many gradients per point."""
        scores, distances = read(reservoir.batches(), outputs, progress)
        return cls(Calibration.of(scores, source, outputs, distances), "", held_out, reservoir)

    @property
    def outputs(self) -> Outputs:
        """The rows by which the score is calibrated, or would be."""
        return USUAL if self.calibration is None else self.calibration.outputs

    def by(self, outputs: Outputs, what: str, read: Read, progress: bool | None = None) -> Calibration:
        """The calibration by a choice of rows, for a feature that needs it; SettingError if there is none.

        Cost: the first time for another choice than that of the calibration, its gradients of all calibration points.
        """
        main = self.required(what)
        if outputs == main.outputs:
            return main
        if outputs not in self.others:
            if self.reservoir is None:
                raise SettingError(
                    f"{what} with outputs={outputs!r} needs calibration points scored in the same way; this score "
                    f"is calibrated with outputs={main.outputs!r}, and {_SCORES_ONLY}. Pass "
                    f"outputs={main.outputs!r}, or call score.calibrate(loader, outputs={outputs!r}) first"
                )
            log.info("calibrated with outputs=%r: scoring the points again with %r", main.outputs, outputs)
            state = CalibrationState.of(read, self.reservoir, main.source, self.held_out, outputs, progress)
            self.others[outputs] = state.required(what)
        return self.others[outputs]

    def required(self, what: str) -> Calibration:
        """The calibration, for a feature that needs it; SettingError if there is none."""
        if self.calibration is None:
            raise SettingError(
                f"{what} needs calibration points, and this score has none: {self.why}. "
                "Call score.calibrate(loader) with points that it was not fitted on, or fit with calibration=loader"
            )
        return self.calibration

    def to_file(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain data for a file; the points themselves are never written."""
        plain = {"why": self.why, "held_out": self.held_out}
        if self.calibration is None:
            return {}, plain
        (tensors, more), *others = (each.to_file() for each in (self.calibration, *self.others.values()))
        tensors |= {f"calibration.{place}": each["calibration"] for place, (each, _) in enumerate(others)}
        return tensors, plain | more | {"others": [each for _, each in others]}

    @classmethod
    def from_file(cls, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> CalibrationState:
        """What `to_file` gave."""
        held_out = float(plain["held_out"])
        if "readings" not in plain:
            return cls(None, str(plain["why"]), held_out)
        main, more = Calibration.from_file(tensors.get("calibration"), plain), enumerate(plain.get("others", ()))
        others = [Calibration.from_file(tensors.get(f"calibration.{place}"), each) for place, each in more]
        return cls(main, "", held_out, others={each.outputs: each for each in others})


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
            return CalibrationState(
                None, f"with fewer than {LEAST_POINTS} points, or if all points are equal, none are held out"
            )
        reservoir = self.data.reservoir if self.before is None else self.before.joined(self.data.reservoir)
        if not len(reservoir):
            return CalibrationState(None, "none of its points was held out by its content", reservoir.threshold)
        return CalibrationState.of(read, reservoir, HELD_OUT, reservoir.threshold, self.outputs, progress)


def split(network: Network, loader: Any, calibration: Any, seed: int, before: CalibrationState | None = None) -> Split:
    """Which of the data are fitted, and which points a score is calibrated on.

    Args:
        network, seed: The network that is called on the points, and the seed of the choice.
        loader: The data.
        calibration: None to hold points out, False to fit on all, or a loader of calibration points.
        before: The calibration so far of a fit that is continued; with `calibration=None` its choice is kept.
    """
    if calibration is False:
        return Split(loader, network, seed, None, why="it was fitted with calibration=False")
    if calibration is not None:
        return Split(loader, network, seed, GIVEN, calibration, outputs=USUAL if before is None else before.outputs)
    if before is not None:
        return replace(_split_as_before(network, loader, seed, before), outputs=before.outputs)
    points = known_points(loader)
    if points is not None and points < LEAST_POINTS:
        return Split(loader, network, seed, HELD_OUT)
    return Split(_hold_out(loader, SHARE, LEAST_POINTS, network, seed), network, seed, HELD_OUT)


def _split_as_before(network: Network, loader: Any, seed: int, before: CalibrationState) -> Split:
    given = before.calibration is not None and before.calibration.source == GIVEN
    if given and before.reservoir is not None:
        return Split(loader, network, seed, GIVEN, before.reservoir)
    if before.held_out:
        # Not a larger share than before: what was fitted then must not be held out now.
        data = _hold_out(loader, before.held_out, 0, network, seed)
        return Split(data, network, seed, HELD_OUT, before=before.reservoir)
    return Split(loader, network, seed, None, why=before.why or f"it was fitted further after loading: {_SCORES_ONLY}")


def merged(states: Sequence[CalibrationState], read: Read, progress: bool | None = False) -> CalibrationState:
    """The pooled points of several fits, scored again by the rows of the first: scores depend on the subspace."""
    held_out = min(state.held_out for state in states)
    reservoir, sources = None, set()
    for place, state in enumerate(states):
        if state.reservoir is None or state.calibration is None:
            why = state.why or f"it was loaded: {_SCORES_ONLY}"
            why = f"score {place} of those it was merged from has no points to score: {why}"
            return CalibrationState(None, why, held_out)
        reservoir = state.reservoir if reservoir is None else reservoir.joined(state.reservoir)
        sources.add(state.calibration.source)
    if reservoir is None or len(sources) > 1:
        return CalibrationState(None, "it was merged from scores calibrated on held-out and on given points", held_out)
    if not len(reservoir):
        return CalibrationState(None, "none of the points that its shards held out was held out by all", held_out)
    (source,) = sources
    return CalibrationState.of(read, reservoir, source, min(held_out, reservoir.threshold), states[0].outputs, progress)


def recalibrated(
    read: Read, network: Network, seed: int, loader: Any, *,
    threshold: float, held_out: bool, outputs: Outputs = USUAL, progress: bool | None,
) -> CalibrationState:  # fmt: skip
    """The calibration on the points of a loader, or on those of them below the threshold that were held out."""
    if not held_out:
        reservoir = _all_of(loader, network, seed)
        return CalibrationState.of(read, reservoir, GIVEN, threshold, outputs, progress)
    if not threshold:
        raise SettingError("the fit held no points out, so there are none to calibrate on; give points it has not seen")
    reservoir = _collected(loader, Reservoir(threshold, MOST_POINTS), network, seed)
    if not len(reservoir):
        raise DataError("none of these points was held out of the fit; give the data that it was fitted on")
    return CalibrationState.of(read, reservoir, HELD_OUT, threshold, outputs, progress)


def _hold_out(loader: Any, share: float, least: int, network: Network, seed: int) -> HoldOut:
    return HoldOut(loader, share, MOST_POINTS, least, seed, _count(network))


def _all_of(loader: Any, network: Network, seed: int) -> Reservoir:
    reservoir = _collected(loader, Reservoir(float("inf"), MOST_POINTS), network, seed)
    if not len(reservoir):
        raise DataError("the calibration points cannot be separated: their inputs hold no tensor with a row per point")
    return reservoir


def _collected(loader: Any, reservoir: Reservoir, network: Network, seed: int) -> Reservoir:
    with network.evaluating():
        return collected(loader, reservoir, seed, _count(network), network.selection.device)


def _count(network: Network) -> Callable[[Inputs], int]:
    return torch.no_grad()(lambda inputs: len(network.outputs(inputs)))
