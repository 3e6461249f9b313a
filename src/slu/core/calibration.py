"""The scores of the calibration points, and p-values and thresholds from them.

Letters: m calibration points, with the scores c; α the rate of false alarms. An exchangeable fresh point has every
rank among them with equal probability, so p = (1 + #{c ≥ score}) / (1 + m) is at most α with a probability of at
most α (conformal prediction), for any network and any score. Scores that are equal up to rounding count as equal
(`slu.core.rounding`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from slu.artifacts import stored
from slu.core.concerns import DEFAULT_RATE, LEAST_POINTS, check_share
from slu.core.directions import ALL, USUAL, Outputs, from_plain, to_plain
from slu.core.readout import READINGS
from slu.core.rounding import Edges, least_rounding, measured_rounding, widened
from slu.core.standard import ANGLE, COMBINED, DISTANCE, LayerScales, Standard
from slu.core.trust import Predictions
from slu.errors import DamagedFileError, DataError, MismatchError, SettingError, unknown

HELD_OUT, GIVEN = "held out", "given"


@dataclass(frozen=True, eq=False)
class Calibration:
    """The scores of points that were not in the fit, by reading.

    Attributes:
        scores: (m,) sorted, float64, on the CPU, by reading, the combined one included.
        standard: Standardizes the views of the combined reading.
        source: "held out" of the fitted data or "given".
        outputs: Which rows of the points were measured; scores of other rows do not compare with these.
        predictions: What the network predicts for the points; None where they have no targets, or a file is older.
        inputs: How many inputs the points are of; fewer than points where these are positions, tokens or pixels, or
            equal points that several shards chose by one number, which are not independent. None for as many.
        rounding: R by reading (`slu.core.rounding`).

    Cost: up to 9 m numbers; m is at most 1,000.
    """

    scores: Mapping[str, Tensor]
    standard: Standard
    source: str
    outputs: Outputs = USUAL
    predictions: Predictions | None = None
    inputs: int | None = None
    rounding: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, scores: Mapping[str, Tensor], source: str, outputs: Outputs = USUAL, distances: Tensor | None = None,
        predictions: Predictions | None = None, inputs: int | None = None,
        alone: tuple[Mapping[str, Tensor], Tensor | None] | None = None,
    ) -> Calibration:  # fmt: skip
        """From (m,) scores by reading and (m, 2 L) squared distances, in any order, all of the same rows.

        `alone` has those of the first points, each scored in a batch of one, by which the rounding is measured.

        Raises:
            DataError: A score is not finite.
        """
        least = least_rounding(scores.values())
        wide = {name: widened(values) for name, values in scores.items()}
        if not all(bool(torch.isfinite(values).all()) for values in wide.values()):
            raise DataError("scores of calibration points are not finite; look for points with extreme inputs")
        single = {} if alone is None else {name: widened(values) for name, values in alone[0].items()}

        def noise(name: str) -> float:
            beside = single.get(name, wide[name][:0])
            return float(measured_rounding(wide[name], beside, READINGS[name].positive, least))

        layers = None
        if distances is not None:
            beside = distances[:0] if alone is None or alone[1] is None else alone[1]
            layers = LayerScales.of(distances, measured_rounding(distances, beside, True, least).tolist())
            for name in (DISTANCE, ANGLE):
                farthest = layers.farthest(distances, name).detach().cpu()
                if not bool(farthest.isnan().any()):
                    wide[name], single[name] = farthest, layers.farthest(beside, name).detach().cpu()
        rounding = {name: noise(name) for name in wide}
        standard = Standard.of(wide, {name: READINGS[name].positive for name in wide}, layers, rounding)
        wide[COMBINED] = standard.combined(wide)
        if alone is not None:
            single[COMBINED] = standard.combined(single)
        rounding[COMBINED] = noise(COMBINED)
        ordered = {name: values.sort().values for name, values in wide.items()}
        return cls(ordered, standard, source, outputs, predictions, inputs, rounding)

    @property
    def points(self) -> int:
        """m."""
        return len(next(iter(self.scores.values())))

    @property
    def independent(self) -> int:
        """How many of the points are independent, at most: what rates of false alarms can rest on."""
        return self.points if self.inputs is None else min(self.points, self.inputs)

    @property
    def memorized(self) -> bool | None:
        """Whether the network has memorized the points, training points held out of the fit; None if unknown.

        Then fresh inputs may be flagged more often than asked for. Of points that were given it is not asked.
        """
        if self.predictions is None or self.predictions.accuracy is None or self.source != HELD_OUT:
            return None
        return self.predictions.memorized

    def __str__(self) -> str:
        rows = f"outputs={self.outputs!r}"
        fewer = f" ({self.independent:,} independent)" if self.independent < self.points else ""
        text = f"{self.points:,} points{fewer}, {self.source}, {rows}; p-values from {1 / (1 + self.points):.2g} up"
        text += f"; {self.distinct(COMBINED)} distinct scores" if self.few_distinct else ""
        text += "" if self.predictions is None else f"; {self.predictions}"
        return text + (": memorized, fresh inputs may be flagged more often" if self.memorized else "")

    def pvalue(self, scores: Tensor, reading: str) -> Tensor:
        """(1 + #{c ≥ score}) / (1 + m): float64, never 0, on the scores' device; NaN for a score that is NaN.

        A score up to 4 R above c counts as equal to it.
        """
        return (1 + self.points - self.edges(reading).below(scores)) / (1 + self.points)

    def percentile(self, scores: Tensor, reading: str) -> Tensor:
        """Per cent of the calibration points that score less, by the same comparison."""
        return 100 * self.edges(reading).below(scores) / self.points

    def distinct(self, reading: str) -> int:
        """How many scores of the calibration points differ by more than rounding."""
        return self.edges(reading).distinct

    @property
    def few_distinct(self) -> bool:
        """Whether their combined scores have fewer steps than the default rate takes, because many are equal."""
        return COMBINED in self.scores and self.distinct(COMBINED) < min(LEAST_POINTS, self.points / 2)

    def threshold(self, false_alarms: float, reading: str) -> float:
        """The score above which p ≤ α: 4 R above the j-th largest calibration score, with j / (1 + m) just above α.

        Infinity where m points are too few for a rate of at least 5 %.

        Raises:
            SettingError: Not a rate, or one that needs more points; the message says how many.
        """
        return float(self.edges(reading).deciding(self.check_rate(false_alarms)).values)

    def check_rate(self, false_alarms: float) -> float:
        """The rate, if m points suffice for it, or would for the default rate, of which the fit has warned."""
        rate = check_share(false_alarms)
        if rate < min(DEFAULT_RATE, 1 / (1 + self.independent)):
            raise SettingError(
                f"false_alarms={rate:g} is below {1 / (1 + self.independent):.3g}, the smallest p-value of "
                f"{self.independent} calibration points; {math.ceil(round(1 / rate, 9)) - 1} points are needed: fit on "
                "more data, give points by fit(loader, calibration=...) or score.calibrate(...), or take a higher rate"
            )
        return rate

    def edges(self, reading: str) -> Edges:
        """Where the p-values by a reading step."""
        if reading not in self.scores:
            if reading in READINGS:
                raise SettingError(f"the score is not calibrated by reading={reading!r}; call score.calibrate(loader)")
            raise unknown("reading", reading, self.scores)
        # A file without: as of a network in float32.
        rounding = self.rounding.get(reading, least_rounding([torch.zeros(1)]))
        return Edges.of(self.scores[reading], READINGS[reading].positive, rounding)

    def to_file(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A tensor (readings, m) and plain data, from which `from_file` restores it."""
        plain = {"readings": list(self.scores), "source": self.source, "outputs": to_plain(self.outputs)}
        plain["predictions"] = None if self.predictions is None else asdict(self.predictions)
        plain |= {"inputs": self.inputs, "rounding": dict(self.rounding)}
        plain |= self.standard.to_plain()
        return {"calibration": torch.stack(list(self.scores.values()))}, plain

    @classmethod
    def from_file(cls, values: Tensor | None, plain: Mapping[str, Any]) -> Calibration:
        """What `to_file` gave.

        Raises:
            DamagedFileError: They are inconsistent.
            MismatchError: It uses a reading that this version does not have.
        """
        names, views = stored.texts(plain, "readings"), stored.rows(plain, "views")
        missing = sorted({name for place in views for name in stored.texts(views, place)} - set(READINGS))
        if missing:
            raise MismatchError(
                f"its combined reading uses {missing}, which this version of slu does not have; "
                "install the version that `slu inspect` names, or fit anew"
            )
        tensors = {} if values is None else {"calibration": values}
        values = stored.tensor(tensors, "calibration", (len(names), None)).double().cpu()
        # Unsorted scores would give wrong p-values without an error.
        if not bool((values.diff(dim=1) >= 0).all()):
            raise DamagedFileError("the calibration scores in the file are not sorted. Fit and save anew")
        standard = Standard.from_plain(plain)
        if unread := [name for name in (*standard.scales, COMBINED) if name not in names]:
            raise stored.wrong("readings", names, f"{unread} among them")
        # Before there was a choice, all rows were measured.
        outputs = from_plain(plain.get("outputs", ALL))
        predictions = None if plain.get("predictions") is None else stored.table(plain, "predictions")
        predictions = None if predictions is None else Predictions.from_plain(predictions)
        inputs = None if plain.get("inputs") is None else stored.whole(plain, "inputs", 1)
        source = stored.text(plain, "source", (HELD_OUT, GIVEN))
        bounds = stored.table(plain, "rounding") if "rounding" in plain else {}
        if not bounds.keys() <= set(names):
            raise stored.wrong("rounding", sorted(bounds), f"readings of the calibration, {names}")
        rounding = {name: stored.number(bounds, name, most=1e40, above=0.0) for name in bounds}
        scores = dict(zip(names, values, strict=True))
        return cls(scores, standard, source, outputs, predictions, inputs, rounding)
