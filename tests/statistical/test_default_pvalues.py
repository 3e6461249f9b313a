"""P-values that a user gets by default, from points that the fit held out, are uniform on fresh points like the data.

Each fit is of another network on other data: 500 standard normal points, of which it holds out m, about 50, and 300
fresh ones. Given m, fresh and held-out points are exchangeable, so that on average a share of ⌊α (m + 1)⌋ / (m + 1) is
flagged at a rate of α, whatever the combined reading is made of; that of one fit has at most the variance
α (1 - α) (1 / (m + 2) + 1 / 300).
"""

from functools import cache

import pytest
import torch
from scipy import stats
from torch import nn

from oracles import LIKELIHOODS
from slu import SLU

SEEDS = range(30)
RATES = (0.1, 0.2, 0.5)
FRESH = 300
WIDER = 1.3
"""By how much the points of the control are wider."""


@cache
def pvalues(likelihood, activation):
    """By seed: m, and p-values of fresh points and of wider ones."""
    rows = []
    for seed in SEEDS:
        draw = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 3))
        points = torch.randn(500 + FRESH, 4, generator=draw)
        score = SLU(model, likelihood, rank=8, seed=seed).fit(points[:500])
        assert score.readings[0] == "combined" and {"distance", "angle"} < set(score.readings)
        rows.append((score.calibration.points, *(score.pvalue(times * points[500:]) for times in (1.0, WIDER))))
    return rows


def errors(rows, place):
    """By rate, how many standard errors the mean share of flagged points is from what it should be."""
    found = {}
    for rate in RATES:
        due = [int(rate * (m + 1) + 1e-9) / (m + 1) for m, *_ in rows]
        variance = sum(a * (1 - a) * (1 / (m + 2) + 1 / FRESH) for a, (m, *_) in zip(due, rows, strict=True))
        flagged = sum(float((row[place] <= rate).double().mean()) for row in rows)
        found[rate] = (flagged - sum(due)) / variance**0.5
    return found


CASES = pytest.mark.parametrize(
    ("likelihood", "activation"), [*((name, nn.Tanh) for name in LIKELIHOODS), ("classification", nn.ReLU)]
)


@CASES
def test_false_alarms_come_at_the_rate_asked_for(likelihood, activation):
    """Within 3.3 standard errors, 99.9 % of a normal, at every rate."""
    found = errors(pvalues(likelihood, activation), 1)
    assert all(abs(each) < 3.3 for each in found.values()), found


@CASES
def test_p_values_are_uniform(likelihood, activation):
    """Ten points of each fit share its calibration points: the test of all 300 takes them for independent, and errs on
    the strict side. The lattice is 1/51 coarse, so a uniform part of a step is taken off each.
    """
    draw = torch.Generator().manual_seed(0)
    rows = pvalues(likelihood, activation)
    steps = [torch.rand(10, generator=draw, dtype=torch.float64) / (m + 1) for m, *_ in rows]
    values = torch.cat([fresh[:10] - step for (_, fresh, _), step in zip(rows, steps, strict=True)])
    assert stats.kstest(values.numpy(), "uniform").pvalue > 0.001


@CASES
def test_control_p_values_of_wider_points_are_not(likelihood, activation):
    rows = pvalues(likelihood, activation)
    found = errors(rows, 2)
    assert all(each > 3.3 for each in found.values()), found
    values = torch.cat([wider[:10] for _, _, wider in rows])
    assert stats.kstest(values.numpy(), "uniform").pvalue < 1e-4
