"""Rates of false alarms, and what a calibration cannot do, in words, with the cure."""

from __future__ import annotations

from slu.checks import positive
from slu.core.trust import Predictions
from slu.errors import SettingError

DEFAULT_RATE = 0.05
"""Of false alarms."""

LEAST_POINTS = 19
"""Of a calibration set that can meet the default rate: p-values are not below 1 / (1 + m)."""

MOST_POINTS = 1000
"""Of the calibration set, held out or given: enough to meet a rate of 5 % within 0.7 %."""

_CURE = "calibrate on points that the network was not trained on: fit(loader, calibration=val_loader)"


def no_points(why: str) -> str:
    """There are none, and why."""
    return (
        f"the score has no calibration points, so there are no p-values and flag() is always False: {why}. Fit on more "
        f"data, or {_CURE}"
    )


def few_points(independent: int, points: int, source: str) -> str:
    """Fewer than the default rate takes, or positions or pooled copies of so few inputs."""
    fewer = independent < points
    what = (
        f"copies, tokens or pixels of only {independent} calibration inputs"
        if fewer
        else f"{points} calibration points"
    )
    then = "it may flag many more" if fewer else "it is always False"
    return (
        f"the score has {what}, {source}; the smallest rate of false alarms that flag() can meet is "
        f"{1 / (1 + independent):.2g}, and at the default of {DEFAULT_RATE:g}, which takes {LEAST_POINTS} points, "
        f"{then}. Pass a higher false_alarms=, fit on more data, or {_CURE}"
    )


def few_distinct(distinct: int, points: int) -> str:
    """Scores that are mostly equal: p-values have so many steps."""
    scores = "the same score" if distinct == 1 else f"only {distinct} distinct scores"
    return (
        f"the {points} calibration points have {scores}, as where inputs repeat or the network's outputs hardly vary. "
        "Between the steps flag() reports fewer inputs than asked for, and none where the highest step is more common "
        "than false_alarms=. Choose a rate by the p-values that occur, score.pvalue(inputs).unique(), or give inputs "
        "that vary more"
    )


def missing_points(missing: int, held_out: int) -> str:
    """Some of the points that were held out were not found in the data, or only their numbers are known from a file."""
    return (
        f"{missing} of the {held_out} points that were held out of the fit are not in the calibration set: they were "
        "not among the data, or only their numbers are known, as from a file. Call score.calibrate(data, "
        "held_out=True) with all data of the fit, in one process (group=False) or dealt out as in the fit, with the "
        "same targets if these leave out positions by -100"
    )


def memorized(predictions: Predictions | None, points: int) -> str:
    """The network is right and sure on nearly all of them."""
    return (
        f"the network may have memorized its training data: {predictions} on {points} training points held out of the "
        f"fit. If it does less well on fresh inputs, these are flagged more often than false_alarms= says; {_CURE}"
    )


def check_share(false_alarms: float) -> float:
    """The rate of false alarms, if it is one."""
    rate = positive("false_alarms", false_alarms)
    if rate > 1:
        raise SettingError(f"false_alarms is a share of fresh points, at most 1; got {false_alarms!r}")
    return rate
