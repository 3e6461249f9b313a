"""The calibration of a score, or why it has none; which points were held out; both on their way to a file and back."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from slu.artifacts import stored
from slu.core import concerns
from slu.core.calibration import HELD_OUT, Calibration
from slu.core.concerns import LEAST_POINTS, MOST_POINTS
from slu.core.directions import USUAL, Outputs
from slu.core.readout import READINGS
from slu.core.rounding import ALONE, measured_rounding, widened
from slu.core.standard import COMBINED
from slu.core.trust import PredictionSums
from slu.data import HeldOut, Reservoir
from slu.errors import CalibrationWarning, DamagedFileError, SettingError, printable

MOST_REDUCED = 200
"""Inputs of the calibration set of which all positions are scored, for p-values of whole inputs."""

NONE_HELD_OUT = "with fewer than 38 points, or fewer than 19 beside those that the rank needs, none are held out"
NONE_BY_CONTENT = "none of its points was held out by its content"
SCORES_ONLY = "a file has the scores of calibration points, not the points"
NONE_AT_HAND = f"none of the points that it held out is at hand: {SCORES_ONLY}"
_STOPPED = "its fit was interrupted while it calibrated"
_RULE = 3  # by which points are held out (`slu.data.holdout`, keys included); raise it when others would be

Read: TypeAlias = Callable[..., tuple[dict[str, Tensor], Tensor | None]]
"""Scores of points by reading, and the distances of their layers' inputs: `SluScore.read_uncalibrated`."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class CalibrationState:
    """The calibration of a score, or why it has none.

    Attributes:
        calibration: The calibration points' scores; None where there are none.
        why: The reason why there are none.
        held_out: Which points were not in the fit.
        reservoir: The points themselves, in the process that ran the fit; a file has only their scores.
        others: The scores of the same points by other rows than those of `calibration`, as far as they were needed.
        reductions: Those of whole inputs, where the points are positions of inputs, as far as they were needed.
    """

    calibration: Calibration | None = None
    why: str = "it was constructed without one"
    held_out: HeldOut = field(default_factory=HeldOut)
    reservoir: Reservoir | None = None
    others: dict[Outputs, Calibration] = field(default_factory=dict)
    reductions: dict[Any, Calibration] = field(default_factory=dict)

    @classmethod
    def while_calibrating(cls, held_out: HeldOut) -> CalibrationState:
        """The state until the calibration points are scored, and after an interruption while they are."""
        return cls(None, _STOPPED, held_out)

    @property
    def stopped(self) -> bool:
        """Whether the fit is done but for its calibration."""
        return self.calibration is None and self.why == _STOPPED

    @classmethod
    def of(
        cls, read: Read, reservoir: Reservoir, source: str, held_out: HeldOut, outputs: Outputs, progress: bool | None
    ) -> CalibrationState:
        """The points of a reservoir, scored by a choice of rows: so many gradients per point; a few also alone."""
        predicted, count = PredictionSums(), len(reservoir)
        scores, distances = read(reservoir.batches(), outputs, progress, predicted, count)
        alone = read(reservoir.alone(ALONE), outputs, False, None, count)
        calibration = Calibration.of(
            scores, source, outputs, distances, predicted.predictions(), reservoir.drawn, alone
        )
        return cls(calibration, "", held_out, reservoir)

    @property
    def missing(self) -> int:
        """How many held-out points are not among those that the score was calibrated on, in this process."""
        known = self.calibration is not None and self.calibration.source == HELD_OUT and self.held_out.numbers
        return 0 if not known or self.reservoir is None else len(known) - len(self.reservoir)

    @property
    def none_held_out(self) -> bool:
        """Whether points were to be held out, and there was none that could be."""
        return self.calibration is None and self.why in (NONE_HELD_OUT, NONE_BY_CONTENT)

    def warn(self, before: CalibrationState | None = None, *, stacklevel: int = 3) -> None:
        """Say what the calibration cannot do, unless that was so before."""
        known = {} if before is None else before.concerns()
        if before is not None and before.calibration is not None and SCORES_ONLY in self.why:
            text = f"the score has no calibration any more: {self.why}. Call score.calibrate(loader)"
            warnings.warn(text, CalibrationWarning, stacklevel=stacklevel)
        for kind, text in self.concerns().items():
            if kind not in known:
                warnings.warn(text, CalibrationWarning, stacklevel=stacklevel)

    def concerns(self) -> dict[str, str]:
        """What the calibration cannot do, with the cure, by kind."""
        texts, calibration = {}, self.calibration
        if self.none_held_out:
            texts["few"] = concerns.no_points(self.why)
        if calibration is None:
            return texts
        if self.missing:
            texts["missing"] = concerns.missing_points(self.missing, len(self.held_out.numbers or ()))
        if calibration.independent < LEAST_POINTS:
            texts["few"] = concerns.few_points(calibration.independent, calibration.points, calibration.source)
        elif calibration.few_distinct:
            texts["distinct"] = concerns.few_distinct(calibration.distinct(COMBINED), calibration.points)
        if calibration.memorized:
            texts["memorized"] = concerns.memorized(calibration.predictions, calibration.points)
        return texts

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
                    f"is calibrated with outputs={main.outputs!r}, and {SCORES_ONLY}. Pass "
                    f"outputs={main.outputs!r}, or call score.calibrate(loader, outputs={outputs!r}) first"
                )
            log.info("calibrated with outputs=%r: scoring the points again with %r", main.outputs, outputs)
            state = CalibrationState.of(read, self.reservoir, main.source, self.held_out, outputs, progress)
            self.others[outputs] = state.required(what)
        return self.others[outputs]

    def reduced(self, by: Calibration, reading: str, reduce: str, score: Callable[[Any], Tensor]) -> Calibration:
        """The scores of whole inputs by one reading, of which `by` has those of positions.

        Cost: the first time the scores of all positions of at most 200 inputs.
        """
        key = reading, by.outputs, reduce
        if key not in self.reductions:
            if self.reservoir is None:
                raise SettingError(
                    f"reduce={reduce!r} needs calibration points scored in the same way, and {SCORES_ONLY}. Call "
                    "score.calibrate(loader) first, or judge every position and reduce the p-values yourself"
                )
            few = replace(self.reservoir, points=self.reservoir.points[:MOST_REDUCED])
            log.info("scoring all positions of %d calibration inputs for reduce=%r", len(few), reduce)
            # Without targets, as inputs are asked about: positions without one count then.
            scores = score([(inputs, None) for inputs, _ in few.batches()]).detach()
            alone = widened(score([(inputs, None) for inputs, _ in few.alone(ALONE)]))
            # No less than of single positions: of batches that are as good as alone no difference may be seen.
            least, scores, positive = by.rounding[reading], widened(scores), READINGS[reading].positive
            known = ~scores.isnan()  # not of inputs without positions
            rounding = float(measured_rounding(scores[known], alone[known[: len(alone)]], positive, least))
            scores = scores[known].sort().values
            self.reductions[key] = replace(by, scores={reading: scores}, inputs=few.drawn, rounding={reading: rounding})
        return self.reductions[key]

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
        threshold, numbers = self.held_out
        count = None if numbers is None else len(numbers)
        plain = {"why": self.why, "held_out": threshold, "numbers": count, "rule": _RULE}
        tensors = {"held_out": torch.tensor(numbers, dtype=torch.float64)} if numbers else {}
        if self.calibration is None:
            return tensors, plain
        (own, more), *others = (each.to_file() for each in (self.calibration, *self.others.values()))
        tensors |= own | {f"calibration.{place}": each["calibration"] for place, (each, _) in enumerate(others)}
        return tensors, plain | more | {"others": [each for _, each in others]}

    @classmethod
    def from_file(cls, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> CalibrationState:
        """What `to_file` gave; DamagedFileError where it cannot have."""
        held_out = _held_out(plain, tensors)
        if "readings" not in plain:
            if "calibration" in tensors:
                raise DamagedFileError("a calibration is in the file but not in its header. Fit and save anew")
            return cls(None, printable(stored.text(plain, "why"), keep=""), held_out)
        main = Calibration.from_file(tensors.get("calibration"), plain)
        more = stored.rows(plain, "others") if "others" in plain else {}
        others = [
            Calibration.from_file(tensors.get(f"calibration.{place}"), stored.table(more, place)) for place in more
        ]
        return cls(main, "", held_out, others={each.outputs: each for each in others})


def _held_out(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> HeldOut:
    threshold = stored.number(plain, "held_out", 0.0, 1.0)
    if plain.get("rule") != _RULE:  # an earlier version held out other points: which, is not known
        return HeldOut()
    if stored.field(plain, "numbers") is None:
        return HeldOut(threshold, None)
    count = stored.whole(plain, "numbers", most=MOST_POINTS)
    if ("held_out" in tensors) != (count > 0):
        raise stored.wrong("numbers", count, "as many as there are in the file")
    numbers = stored.tensor(tensors, "held_out", (count,), torch.float64) if count else torch.empty(0)
    if not bool((numbers.diff() >= 0).all() and (numbers > 0).all() and (numbers < threshold).all()):
        raise stored.wrong("held_out", numbers.tolist(), f"rising numbers above 0 and below {threshold}")
    return HeldOut(threshold, tuple(numbers.tolist()))
