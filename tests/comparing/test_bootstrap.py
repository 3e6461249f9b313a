"""Intervals: what they hold, how often they do, and what pairing is for."""

from statistics import NormalDist

import numpy as np
import pytest
import torch

from slu.comparing import Estimate, detect, judge
from slu.comparing import bootstrap as module
from slu.comparing.bootstrap import (
    InsideOrder,
    OutsideOrder,
    Scored,
    difference,
    judge_all,
    resampled_metrics,
    resamples,
)
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
    estimates = [judge(*drawn(seed), resamples=RESAMPLES, seed=seed).auroc for seed in SEEDS]
    assert LEAST <= coverage([(each.low, each.high) for each in estimates], true_auroc()) <= MOST


def test_control_intervals_of_half_the_points_do_not():
    """Resampling the outside points alone leaves half of the variance out: 1.96/√2 gives 83 %."""
    collected = []
    for seed in SEEDS:
        inside, outside = drawn(seed)
        counts = next(iter(resamples(1, {"outside": POINTS}, 50, seed))).outside["outside"]
        order = InsideOrder(inside)
        collected.append(
            ends(OutsideOrder(order, outside).metrics(order.below(np.ones((POINTS, counts.shape[1]))), counts)[0])
        )
    assert coverage(collected, true_auroc()) < LEAST


def pair(seed, noise=0.3):
    """Two scores of the same points that differ by a little noise: equally good."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=POINTS), rng.normal(size=POINTS) + SHIFT
    scores = [[side + noise * rng.normal(size=POINTS) for side in points] for _ in range(2)]
    return [Scored(inside, {"far": outside}) for inside, outside in scores]


def test_paired_differences_hold_the_truth_as_often_as_they_say():
    estimates = [difference(*pair(seed), "far", metric="auroc", resamples=RESAMPLES, seed=seed) for seed in SEEDS]
    assert LEAST <= coverage([(each.low, each.high) for each in estimates], 0.0) <= MOST


def test_control_unpaired_differences_are_far_too_wide():
    """With resamples of its own for each score, what both have in common does not fall out."""
    collected = []
    for seed in SEEDS:
        one, two = pair(seed)
        (first,), (second,) = (
            resampled_metrics([each], count=RESAMPLES, seed=place) for place, each in enumerate((one, two))
        )
        collected.append(ends(first["far"][0] - second["far"][0]))
    assert coverage(collected, 0.0) > MOST


def true_aupr(shift, share):
    """∫ precision d(recall) of two normal scores, the outside being this share of all points."""
    threshold = torch.linspace(12, -12, 100_001, dtype=torch.float64)
    alarms, caught = (torch.special.log_ndtr(mean - threshold).exp() for mean in (0.0, shift))  # 0/0 is never met
    precision = share * caught / (share * caught + (1 - share) * alarms)
    return float(torch.trapezoid(precision, caught))


# Shift, points inside and outside, and the least coverage: at guessing that of AUROC; for a score that is fooled, with
# an AUPR of 0.20 where guessing is 0.33, 4 % less, because the value itself lies too high there (measured: 91 %).
AUPR_CASES = [(0.0, 80, 80, LEAST), (-1.5, 200, 100, LEAST - 0.04)]


def aupr_drawn(seed, shift, inside, outside):
    rng = np.random.default_rng(seed)
    return rng.normal(size=inside), rng.normal(size=outside) + shift


@pytest.mark.parametrize(("shift", "inside", "outside", "least"), AUPR_CASES, ids=["guessing", "fooled"])
def test_aupr_intervals_hold_the_truth_as_often_as_they_say(shift, inside, outside, least):
    judged = [judge(*aupr_drawn(seed, shift, inside, outside), resamples=RESAMPLES, seed=seed).aupr for seed in SEEDS]
    truth = true_aupr(shift, outside / (inside + outside))
    assert least <= coverage([(each.low, each.high) for each in judged], truth) <= MOST


@pytest.mark.parametrize(("shift", "inside", "outside", "least"), AUPR_CASES[1:], ids=["fooled"])
def test_control_plain_percentiles_of_aupr_lie_too_high(shift, inside, outside, least):
    collected = []
    for seed in SEEDS:
        one, two = aupr_drawn(seed, shift, inside, outside)
        (draws,) = resampled_metrics([Scored(one, {"outside": two})], count=RESAMPLES, seed=seed)
        collected.append(ends(draws["outside"][1]))
    truth = true_aupr(shift, outside / (inside + outside))
    assert coverage(collected, truth) < least - 0.1
    below = np.mean([low <= truth for low, _ in collected])
    assert coverage(collected, truth) == pytest.approx(below, abs=0.01)  # the others are too high


def test_paired_differences_of_aupr_hold_the_truth_as_often_as_they_say():
    estimates = [difference(*pair(seed), "far", metric="aupr", resamples=RESAMPLES, seed=seed) for seed in SEEDS[:100]]
    # Of 100 seeds the standard error is 2.2 %: three of them, and the percent that there is less.
    assert LEAST - 0.02 <= coverage([(each.low, each.high) for each in estimates], 0.0) < 1


@pytest.mark.parametrize("points", [2, 20])
def test_every_value_lies_in_its_interval(points):
    """Also of few points, where the resamples' AUPR lies above the value, and where scores are tied."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        scores = [rng.normal(size=points).round(seed % 3) - shift for shift in (0, 0, 2, 2)]
        one, two = (Scored(scores[place], {"far": scores[place + 2]}) for place in (0, 1))
        judged = judge(one.inside, one.outside["far"], resamples=50, seed=seed)
        for metric in ("auroc", "aupr", "fpr95"):
            each = getattr(judged, metric)
            assert 0 <= each.low <= each.value <= each.high <= 1
            gap = difference(one, two, "far", metric=metric, resamples=50, seed=seed)
            assert -1 <= gap.low <= gap.value <= gap.high <= 1


def test_the_correction_is_the_textbooks_and_no_narrower_than_the_plain_interval():
    """Draws that are a normal's quantiles, seen from a value z₀ of its deviations below their median."""
    quantiles = np.array([NormalDist().inv_cdf((place + 0.5) / 4000) for place in range(4000)])
    for z in (-0.5, 0.0, 0.3):
        low, high = module._corrected(z, quantiles)
        # BC: percentiles at Φ(2 z₀ ± 1.96), which for a normal are 2 z₀ ± 1.96; moved: z₀ ± 1.96.
        assert low == pytest.approx(min(2 * z, z) - 1.96, abs=0.03)
        assert high == pytest.approx(max(2 * z, z) + 1.96, abs=0.03)
    low, high = module._corrected(-3.9, quantiles)  # every draw lies above
    assert high - low >= 2 * 1.95


def test_values_are_those_of_detect_and_lie_in_their_intervals():
    inside, outside = drawn(0)
    judgement, expected = judge(inside, outside), detect(inside, outside)
    for metric in ("auroc", "aupr", "fpr95"):
        each = getattr(judgement, metric)
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

    def result(metric, *scores):
        return difference(*scores, "far", metric=metric, resamples=200, seed=0)

    assert result("auroc", good, bad).low > 0 > result("auroc", bad, good).high
    assert result("fpr95", good, bad).high < 0  # less is better there
    back, forth = result("aupr", good, bad), result("aupr", bad, good)
    assert (back.value, back.low, back.high) == pytest.approx((-forth.value, -forth.high, -forth.low))
    assert result("auroc", good, good) == Estimate(0.0, 0.0, 0.0)
    expected = detect(inside, outside).auroc - detect(-inside, -outside).auroc
    assert result("auroc", good, bad).value == pytest.approx(expected)


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
    estimate = Estimate(0.91, 0.89, 0.95)
    assert str(estimate) == "0.910 (0.890 to 0.950)"
    assert estimate.holds(0.89) and not estimate.holds(0.951)
    assert module.LEVEL == 0.95
