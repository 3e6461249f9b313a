"""Data of few points: how many are held out, what can be flagged, and what the fit says."""

import math
import warnings

import pytest
import torch
from torch import nn

from calibrated import COMBINED, Unsized, held, problem, slu
from slu import SLU, Lanczos, Stream
from slu.errors import CalibrationWarning, SettingError

KINDS = {"batch": lambda x: x, "list": lambda x: list(x.split(7)), "unsized": lambda x: Unsized(x, 7),
         "generator": lambda x: iter(x.split(20))}  # fmt: skip


def fitted(method, data, **settings):
    """A fit, and what it warns of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        score = method.fit(data, **settings)
    assert all(each.category is CalibrationWarning and each.filename == __file__ for each in told)
    return score, [str(each.message) for each in told]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("points", [1, 2, 10, 30, 37])
def test_of_very_few_points_none_are_held_out_and_the_fit_says_so(points, kind):
    model, inputs = problem(points)
    score, told = fitted(slu(model, rank=1), KINDS[kind](inputs))
    assert score.diagnostics.points == points and score.calibration is None
    assert len(told) == 1
    for words in ("no calibration points", "always False", "fewer than 38 points", "calibration=val_loader"):
        assert words in told[0]
    assert score.readings[0] == "fisher" and COMBINED not in score.readings
    for rate in ({}, {"false_alarms": 0.3}, {"false_alarms": 0.001}):
        flags = score.flag(20 * inputs, **rate)
        assert flags.dtype == torch.bool and flags.shape == (points,) and not bool(flags.any())
    assert score.threshold() == score.threshold(0.3) == math.inf
    for ask in (lambda: score(inputs, reading=COMBINED), lambda: score.pvalue(inputs)):
        with pytest.raises(SettingError, match=r"fewer than 38 points.*score\.calibrate"):
            ask()
    for ask in (lambda: score.flag(inputs, false_alarms=7.0), lambda: score.threshold(7.0)):
        with pytest.raises(SettingError, match="at most 1"):
            ask()


def test_points_that_come_later_are_held_out_where_there_were_too_few():
    model, inputs = problem(400)
    score, told = fitted(slu(model, rank=1), inputs[:20])
    assert len(told) == 1 and score.calibration is None
    score.partial_fit(inputs[20:])
    assert score.calibration.points >= 19 and score.readings[0] == COMBINED
    assert bool(score.flag(1000 * inputs[:5]).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("points", [38, 60, 150, 199, 250])
def test_otherwise_enough_for_the_default_rate(points, kind):
    """The 19 points with the smallest numbers, or all whose number is below a tenth."""
    model, inputs = problem(points)
    score, told = fitted(slu(model), KINDS[kind](inputs))
    apart = max(19, int(held(inputs).sum()))
    assert not told and score.calibration.points == apart
    assert score.diagnostics.points == points - apart
    assert bool((score.pvalue(inputs) > 0).all()) and math.isfinite(score.threshold())
    assert int(score.flag(1000 * inputs).sum()) > 0
    expected = slu(model).fit(inputs).calibration.scores[COMBINED]
    torch.testing.assert_close(score.calibration.scores[COMBINED], expected, rtol=1e-6, atol=1e-6)


def test_seeds_do_not_leave_too_few():
    """Of 200 points a tenth by content is fewer than 19 in a third of all seeds."""
    model, inputs = problem(200)
    tenths = [int(held(inputs, seed).sum()) for seed in range(10)]
    assert min(tenths) < 19 < max(tenths)
    for seed, tenth in enumerate(tenths):
        score, told = fitted(slu(model, seed=seed), inputs)
        assert score.calibration.points == max(19, tenth) and not told
        score.flag(inputs)


@pytest.mark.parametrize("solver", [Stream(), Stream(labels_per_point=2), Stream(labels_per_point="all"), Lanczos()])
@pytest.mark.parametrize("points", [60, 240])
def test_a_rank_that_all_points_allow_is_not_refused(solver, points):
    """What the rank needs is fitted, and the rest held out if it is enough."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = nn.Linear(250, 3).double(), torch.randn(points, 250).double()
    each = {Stream(): 1, Stream(labels_per_point=2): 2}.get(solver, 3)
    tenth = max(19, int(held(inputs).sum()))
    for left in (points, points - 5, points - 19, points - tenth, points // 2):
        rank = min(each * left, 240)
        method = SLU(model, "regression", rank=rank, sketch="identity", solver=solver, scale=None, ridge=0.0)
        score, told = fitted(method, inputs)
        free = points - math.ceil(rank / each)
        assert score.diagnostics.points == points - (min(tenth, free) if free >= 19 else 0)
        assert bool(told) == (free < 19)
        score.flag(inputs)
    with pytest.raises(SettingError, match="above what the data allow"):
        SLU(model, "regression", rank=each * points + 1, sketch="identity", solver=solver).fit(inputs)


@pytest.mark.parametrize(("distinct", "words"), [(1, "have the same score"), (12, "only 12 distinct scores")])
def test_copies_are_held_out_like_other_points_and_few_distinct_scores_are_told(distinct, words):
    model, inputs = problem(60)
    score, told = fitted(slu(model), inputs[:distinct].repeat(600 // distinct, 1))
    assert 19 <= score.calibration.points < 100
    assert len(told) == 1 and words in told[0] and "score.pvalue(inputs).unique()" in told[0]
    assert f"{distinct} distinct scores" in str(score.calibration)
    assert score.calibration.distinct("combined") == distinct
    # Scores that are all alike are flagged at no rate below 1, whatever the batch; only others can be.
    alike = inputs[:1].repeat(50, 1)
    if distinct == 1:
        assert not any(bool(score.flag(part, false_alarms=0.9).any()) for part in (alike, alike[:1], alike[:7]))
        assert score.pvalue(alike).unique().tolist() == [1.0]
    # Control: distinct points.
    assert fitted(slu(model), problem(600)[1])[1] == []


def test_few_points_of_ones_own_name_the_smallest_rate():
    model, inputs = problem(100)
    score, told = fitted(slu(model), inputs[:80], calibration=inputs[80:90])
    assert len(told) == 1
    for words in ("10 calibration points, given", "is 0.091", "takes 19 points", "higher false_alarms="):
        assert words in told[0]
    assert not bool(score.flag(1000 * inputs).any()) and score.threshold() == math.inf
    assert bool(score.flag(1000 * inputs, false_alarms=0.1).any())
    with pytest.raises(SettingError, match="points are needed"):
        score.flag(inputs, false_alarms=0.01)
    with pytest.warns(CalibrationWarning, match="5 calibration points, given"):
        score.calibrate(inputs[80:85])
    assert fitted(slu(model), inputs[:80], calibration=inputs[81:])[1] == []
    assert fitted(slu(model), inputs[:80], calibration=False)[1] == []


def test_a_fit_that_goes_on_holds_out_as_one_of_all_points_would():
    """In the end a tenth; points that were held out of the first part and would not be now count no more."""
    model, inputs = problem(900)
    score = slu(model).fit(inputs[:50])
    assert score.calibration.points == 19 and score.state.calibration.held_out.threshold > 0.2
    for part in inputs[50:].split(17):
        score.partial_fit(part)
    assert score.state.calibration.held_out.threshold == 0.1
    assert score.calibration.points == int(held(inputs).sum())


def test_the_network_is_checked_though_one_point_is_left_of_the_first_batch():
    model, inputs = problem(100)
    with pytest.raises(ValueError, match="rest of its batch"):
        slu(model, forward=lambda called, x: called(x - x.mean(0))).fit(list(inputs.split(20)))
