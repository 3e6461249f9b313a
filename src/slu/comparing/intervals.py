"""How far a metric would move with other points of the same kind: percentile bootstrap, paired over scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from slu.comparing.metrics import METRICS, Scores, checked_scores, detect, find_metric
from slu.comparing.resampling import Scored, resampled_metrics

LEVEL = 0.95
"""The share of intervals that would hold the true value."""

RESAMPLES = 1000
"""By default: an end of a normal interval then has a standard error, from the draws alone, of 2 % of the width."""


@dataclass(frozen=True)
class Estimate:
    """A value and the 95 % interval around it.

    >>> print(Estimate(0.912, 0.898, 0.925))
    0.912 (0.898 to 0.925)
    """

    value: float
    low: float
    high: float

    def holds(self, number: float) -> bool:
        """Whether a number lies in the interval; for a difference, 0 means that it may be chance."""
        return self.low <= number <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Judgement:
    """A `Detection` with intervals: AUROC, AUPR and FPR95 of one score on one outside set."""

    auroc: Estimate
    aupr: Estimate
    fpr95: Estimate


def judge(inside: Scores, outside: Scores, *, resamples: int = RESAMPLES, seed: int = 0) -> Judgement:
    """Judge a score as `detect` does, with 95 % bootstrap intervals.

    Inside and outside points are resampled separately, each set to its own size, and the interval
    runs between the percentiles of what the resamples give. It knows of no uncertainty but that of
    the points: a score that separates the points at hand without fault gets an interval of no
    width, whatever further points would show.

    Args:
        inside: (n,) scores of points like the training data.
        outside: (m,) scores of points unlike them.
        resamples: How many.
        seed: Of the resamples.

    Raises:
        DataError: A set is empty, not one-dimensional, or holds NaN.

    >>> judge(inside=[0.1, 0.2, 0.3], outside=[0.25, 0.9]).auroc
    Estimate(value=0.833..., low=0.333..., high=1.0)

    Cost: O(n + m) a resample.
    """
    scored = Scored(checked_scores(inside, "inside"), {"outside": checked_scores(outside, "outside")})
    return judge_all([scored], resamples=resamples, seed=seed)[0][0]["outside"]


def judge_all(
    scored: Sequence[Scored], *, resamples: int, seed: int
) -> tuple[list[dict[str, Judgement]], dict[str, dict[str, tuple[int, ...]]]]:
    """Judge scores of the same points in the same resamples.

    Returns:
        For each score its judgements by outside set; and leaders[metric][set], the positions of the
        best score and of those that cannot be told from it: 0 is in the 95 % interval of the
        paired difference.
    """
    draws = resampled_metrics(scored, count=resamples, seed=seed)
    values = [_values(found) for found in scored]
    judgements = [
        {name: _judgement(point[name], drawn[name]) for name in found.outside}
        for found, point, drawn in zip(scored, values, draws, strict=True)
    ]
    names = list(dict.fromkeys(name for found in scored for name in found.outside))
    leaders = {
        metric: {name: _leaders(values, draws, name, place) for name in names} for place, metric in enumerate(METRICS)
    }
    return judgements, leaders


def difference(first: Scored, second: Scored, outside: str, *, metric: str, resamples: int, seed: int) -> Estimate:
    """A metric of the first score minus that of the second, with the interval of the paired difference.

    Both meet the same resamples, so what is common to them falls out: two scores whose own
    intervals overlap can still differ for certain.
    """
    find_metric(metric)
    place = list(METRICS).index(metric)
    pair = [Scored(found.inside, {outside: found.outside[outside]}) for found in (first, second)]
    one, two = (drawn[outside][place] for drawn in resampled_metrics(pair, count=resamples, seed=seed))
    values = [_values(found)[outside][place] for found in pair]
    return Estimate(float(values[0] - values[1]), *_ends(one - two))


def _values(scored: Scored) -> dict[str, np.ndarray]:
    """(3,) for every outside set, by scikit-learn."""
    return {
        name: np.array(list(asdict(detect(scored.inside, found)).values())) for name, found in scored.outside.items()
    }


def _judgement(values: np.ndarray, draws: np.ndarray) -> Judgement:
    return Judgement(*(Estimate(float(value), *_ends(drawn)) for value, drawn in zip(values, draws, strict=True)))


def _ends(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _leaders(
    values: Sequence[Mapping[str, np.ndarray]], draws: Sequence[Mapping[str, np.ndarray]], name: str, place: int
) -> tuple[int, ...]:
    judged = [position for position, found in enumerate(values) if name in found]
    sign = 1 if list(METRICS.values())[place].larger_is_better else -1
    best = max(judged, key=lambda position: sign * values[position][name][place])
    found = []
    for position in judged:
        low, high = _ends(draws[best][name][place] - draws[position][name][place])
        if low <= 0 <= high:
            found.append(position)
    return tuple(found)
