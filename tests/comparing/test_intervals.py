"""Intervals: what they hold, how often they do, and what pairing is for."""

from statistics import NormalDist

import numpy as np
import pytest
import torch

from slu.comparing import Estimate, detect, judge
from slu.comparing import intervals as module
from slu.comparing.intervals import difference, judge_all
from slu.comparing.resampling import InsideOrder, OutsideOrder, Scored, resampled_metrics, resamples
from slu.errors import DataError, SettingError

SEEDS = range(200)
POINTS = 80
SHIFT = 1.0
# Over 200 seeds a coverage of 95 % has a standard error of 1.5 %: three of them upwards, and downwards one percent
# more, which percentile intervals of so few points and resamples lack.
LEAST, MOST = 0.95 - 0.056, 0.95 + 0.046
RESAMPLES = 100


def drawn(seed, shift=SHIFT, points=POINTS):
    rng = np.random.default_rng(seed)
    return rng.normal(size=points), rng.normal(size=points) + shift


def true_auroc(shift=SHIFT):
    """P(outside > inside) of two normal scores."""
    return NormalDist().cdf(shift / np.sqrt(2))


def coverage(intervals, truth):
    return np.mean([low <= truth <= high for low, high in intervals])


def ends(draws, level=0.95):
    return np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])


def test_auroc_intervals_hold_the_truth_as_often_as_they_say():
    found = [judge(*drawn(seed), resamples=RESAMPLES, seed=seed).auroc for seed in SEEDS]
    assert LEAST <= coverage([(each.low, each.high) for each in found], true_auroc()) <= MOST


def test_control_intervals_of_half_the_points_do_not():
    """Resampling the outside points alone leaves half of the variance out: 1.96/√2 gives 83 %."""
    found = []
    for seed in SEEDS:
        inside, outside = drawn(seed)
        counts = next(iter(resamples(1, {"outside": POINTS}, 50, seed))).outside["outside"]
        order = InsideOrder(inside)
        found.append(
            ends(OutsideOrder(order, outside).metrics(order.below(np.ones((POINTS, counts.shape[1]))), counts)[0])
        )
    assert coverage(found, true_auroc()) < LEAST


def pair(seed, noise=0.3):
    """Two scores of the same points that differ by a little noise: equally good."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=POINTS), rng.normal(size=POINTS) + SHIFT
    scores = [[side + noise * rng.normal(size=POINTS) for side in points] for _ in range(2)]
    return [Scored(inside, {"far": outside}) for inside, outside in scores]


def test_paired_differences_hold_the_truth_as_often_as_they_say():
    found = [difference(*pair(seed), "far", metric="auroc", resamples=RESAMPLES, seed=seed) for seed in SEEDS]
    assert LEAST <= coverage([(each.low, each.high) for each in found], 0.0) <= MOST


def test_control_unpaired_differences_are_far_too_wide():
    """With resamples of its own for each score, what both have in common does not fall out."""
    found = []
    for seed in SEEDS:
        one, two = pair(seed)
        (first,), (second,) = (
            resampled_metrics([each], count=RESAMPLES, seed=place) for place, each in enumerate((one, two))
        )
        found.append(ends(first["far"][0] - second["far"][0]))
    assert coverage(found, 0.0) > MOST


def test_values_are_those_of_detect_and_lie_in_their_intervals():
    inside, outside = drawn(0)
    found, expected = judge(inside, outside), detect(inside, outside)
    for metric in ("auroc", "aupr", "fpr95"):
        each = getattr(found, metric)
        assert each.value == getattr(expected, metric)
        assert each.low < each.value < each.high and each.low >= 0 and each.high <= 1


def test_more_points_narrow_the_interval():
    """By half for four times as many, give or take."""
    widths = [
        np.mean([(each := judge(*drawn(seed, points=points)).auroc).high - each.low for seed in range(5)])
        for points in (100, 400)
    ]
    assert widths[1] / widths[0] == pytest.approx(0.5, rel=0.25)


def test_the_seed_decides():
    inside, outside = drawn(1)
    assert judge(inside, outside, seed=3) == judge(torch.tensor(inside), torch.tensor(outside), seed=3)
    assert judge(inside, outside, seed=3) != judge(inside, outside, seed=4)


@pytest.mark.parametrize(
    ("inside", "outside", "expected"),
    [
        ([1.0] * 5, [1.0] * 5, Estimate(0.5, 0.5, 0.5)),
        ([0.0, 1.0], [np.inf, np.inf], Estimate(1.0, 1.0, 1.0)),
        ([-np.inf, 0.0], [-np.inf, -np.inf], Estimate(0.25, 0.0, 0.5)),
        ([3.0], [4.0], Estimate(1.0, 1.0, 1.0)),
    ],
    ids=["constant", "infinite", "tied at minus infinity", "single points"],
)
def test_awkward_scores(inside, outside, expected):
    assert judge(inside, outside).auroc == expected


def test_what_cannot_be_judged_is_refused():
    with pytest.raises(DataError, match="1 of the 2 outside scores are NaN"):
        judge([0.0], [np.nan, 1.0])
    with pytest.raises(SettingError, match="unknown metric 'f1'; valid are 'auroc', 'aupr', 'fpr95'"):
        difference(*pair(0), "far", metric="f1", resamples=50, seed=0)


def test_differences_have_the_right_sign():
    inside, outside = drawn(0)
    good, bad = Scored(inside, {"far": outside}), Scored(-inside, {"far": -outside})

    def found(metric, *scores):
        return difference(*scores, "far", metric=metric, resamples=200, seed=0)

    assert found("auroc", good, bad).low > 0 > found("auroc", bad, good).high
    assert found("fpr95", good, bad).high < 0  # less is better there
    back, forth = found("aupr", good, bad), found("aupr", bad, good)
    assert (back.value, back.low, back.high) == pytest.approx((-forth.value, -forth.high, -forth.low))
    assert found("auroc", good, good) == Estimate(0.0, 0.0, 0.0)
    expected = detect(inside, outside).auroc - detect(-inside, -outside).auroc
    assert found("auroc", good, bad).value == pytest.approx(expected)


def test_the_best_and_those_like_it_lead():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=300), rng.normal(size=300) + 2
    near = [side + 1e-3 * rng.normal(size=300) for side in (inside, outside)]
    scored = [
        Scored(rng.normal(size=300), {"far": rng.normal(size=300)}),
        Scored(inside, {"far": outside}),
        Scored(near[0], {"far": near[1]}),
        Scored(-inside, {"far": -outside}),
        Scored(inside, {}),
    ]
    judged, leaders = judge_all(scored, resamples=200, seed=0)
    assert all(leaders[metric]["far"] == (1, 2) for metric in ("auroc", "aupr", "fpr95"))
    assert judged[4] == {} and judge_all([], resamples=200, seed=0)[0] == []


def test_an_estimate_is_told_and_asked():
    found = Estimate(0.91, 0.89, 0.95)
    assert str(found) == "0.910 (0.890 to 0.950)"
    assert found.holds(0.89) and not found.holds(0.951)
    assert module.LEVEL == 0.95
