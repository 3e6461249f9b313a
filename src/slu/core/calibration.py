"""What a score was on points that the fit has not seen: from a number of unknown scale to how rare it is.

Letters: m calibration points, with the scores c; α the rate of false alarms. A fresh point of the same kind is as
likely to have any rank among them, so that p = (1 + #{c ≥ score}) / (1 + m) is at most α for a share of at
most α of such points (conformal prediction), whatever the network and however good the score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slu.checks import positive
from slu.core.readings import READINGS
from slu.errors import DamagedFileError, DataError, SettingError, unknown

COMBINED = "combined"
COORDINATES = ("fisher", "fisher-relative")
"""The readings whose standardized logarithms the combined one adds up."""

_FLOOR = 1e-3  # of the smallest score above 0 among the calibration points


@dataclass(frozen=True)
class Standard:
    """Logarithms of two readings brought to mean 0 and deviation 1 on calibration points.

    Attributes:
        means, deviations: Of the logarithms, one for each of COORDINATES.
        floors: Scores below are taken for this: no logarithm of 0, which a network that is sure beyond
            rounding has, and a thousand times below every calibration point that is not 0 itself.
    """

    means: tuple[float, ...]
    deviations: tuple[float, ...]
    floors: tuple[float, ...]

    @classmethod
    def of(cls, scores: Mapping[str, Tensor]) -> Standard:
        """From (m,) scores of calibration points by reading.

        Numerics: float64. Where all are equal there is nothing to divide by, and 1 stands for the deviation.
        """
        means, deviations, floors = [], [], []
        for name in COORDINATES:
            values = scores[name].double()
            above = values[values > 0]
            floor = max(_FLOOR * float(above.min()) if len(above) else 1.0, torch.finfo(torch.float64).tiny)
            logs = values.clamp(min=floor).log()
            deviation = float(logs.std()) if len(logs) > 1 else 0.0
            means.append(float(logs.mean()))
            deviations.append(deviation if deviation > 1e-12 * max(1.0, abs(means[-1])) else 1.0)
            floors.append(floor)
        return cls(tuple(means), tuple(deviations), tuple(floors))

    def __call__(self, scores: Mapping[str, Tensor]) -> Tensor:
        """(n,) sums of the standardized logarithms, float64."""
        total = torch.zeros_like(scores[COORDINATES[0]], dtype=torch.float64)
        for name, mean, deviation, floor in zip(COORDINATES, self.means, self.deviations, self.floors, strict=True):
            total += (scores[name].double().clamp(min=floor).log() - mean) / deviation
        return total


@dataclass(frozen=True, eq=False)
class Calibration:
    """The scores of points that were not in the fit, by reading.

    Attributes:
        scores: (m,) sorted, float64, on the CPU, for every reading and the combined one.
        standard: How the combined reading is formed.
        source: Where the points come from, "held out" of the fitted data or "given".

    Cost: 5 m numbers; m is at most 1,000.
    """

    scores: Mapping[str, Tensor]
    standard: Standard
    source: str

    @classmethod
    def of(cls, scores: Mapping[str, Tensor], source: str) -> Calibration:
        """From (m,) scores by reading, in any order.

        Raises:
            DataError: A score is not finite.
        """
        found = {name: values.detach().double().cpu() for name, values in scores.items()}
        if not all(bool(torch.isfinite(values).all()) for values in found.values()):
            raise DataError("scores of calibration points are not finite; look for points with extreme inputs")
        standard = Standard.of(found)
        found[COMBINED] = standard(found)
        return cls({name: values.sort().values for name, values in found.items()}, standard, source)

    @property
    def points(self) -> int:
        """m."""
        return len(self.scores[COMBINED])

    def __str__(self) -> str:
        return f"{self.points:,} points, {self.source}; p-values from {1 / (1 + self.points):.2g} up"

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
            SettingError: No rate, or one that so few points cannot tell; the message says how many could.
        """
        rate = self.check_rate(false_alarms)
        values = self._of(reading)
        # The very comparison that `flag` makes, so that rounding cannot part the two.
        often = (1 + torch.arange(self.points + 1, dtype=torch.float64)) / (1 + self.points)
        reached = int((often <= rate).sum())
        return -math.inf if reached > self.points else float(values[self.points - reached])

    def check_rate(self, false_alarms: float) -> float:
        """The rate, if it is one that m points can tell."""
        rate = positive("false_alarms", false_alarms)
        if rate > 1:
            raise SettingError(f"false_alarms is a share of fresh points, at most 1; got {false_alarms!r}")
        if rate < 1 / (1 + self.points):
            raise SettingError(
                f"false alarms at a rate of {rate:g} cannot be told from {self.points} calibration points, whose "
                f"smallest p-value is {1 / (1 + self.points):.3g}; {math.ceil(round(1 / rate, 9)) - 1} could: fit on "
                "more data, give points by fit(loader, calibration=...) or score.calibrate(...), or take a higher rate"
            )
        return rate

    def _of(self, reading: str) -> Tensor:
        if reading not in self.scores:
            raise unknown("reading", reading, self.scores)
        return self.scores[reading]

    def stored(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A tensor (readings, m) and plain data, from which `restored` makes it again."""
        values = torch.stack([self.scores[name] for name in (*READINGS, COMBINED)])
        standard = {key: list(value) for key, value in vars(self.standard).items()}
        plain = {"readings": [*READINGS, COMBINED], "standard": standard, "source": self.source}
        return {"calibration": values}, plain

    @classmethod
    def restored(cls, values: Tensor | None, plain: Mapping[str, Any]) -> Calibration:
        """What `stored` gave.

        Raises:
            DamagedFileError: The two do not fit together.
        """
        names = plain["readings"]
        if values is None or values.dim() != 2 or len(values) != len(names) or not values.shape[1]:
            raise DamagedFileError("a calibration is in the header but not in the file, or of another shape; fit anew")
        values = values.double().cpu()
        # Sorted and finite, or every p-value would be wrong without a sign of it.
        if not bool(torch.isfinite(values).all()) or not bool((values.diff(dim=1) >= 0).all()):
            raise DamagedFileError("the calibration scores in the file are not sorted or not finite; fit anew")
        standard = Standard(**{key: tuple(float(each) for each in value) for key, value in plain["standard"].items()})
        return cls(dict(zip(names, values, strict=True)), standard, str(plain["source"]))
