"""Calibration after more data, merging, and on other points: never stale, never on points of the fit."""

import pytest
import torch

from calibrated import held, problem, slu
from oracles import network
from slu import SLU
from slu.core import split
from slu.core.readout import GRADIENT_READINGS
from slu.data import HeldOut, Reservoir
from slu.data.reservoir import HeldPoint
from slu.errors import CalibrationWarning, DataError, SettingError
from untouched import assert_same, snapshot


def test_a_fit_that_goes_on_holds_out_and_scores_anew():
    model, inputs = problem(500)
    apart = held(inputs)
    first, more = inputs[:260], inputs[260:]
    score = slu(model).fit(first)
    before = score.calibration.points
    assert score.partial_fit(more) is score
    assert score.diagnostics.points == int((~apart).sum())
    assert score.calibration.points == int(apart.sum()) > before
    for reading in GRADIENT_READINGS:
        expected = score(inputs[apart], reading=reading, outputs=1).sort().values
        torch.testing.assert_close(score.calibration.scores[reading], expected, rtol=1e-9, atol=1e-12)
    # The points that were held out are not fitted when they come again.
    again = score.diagnostics.points
    assert score.partial_fit(first).diagnostics.points == again + int((~apart[:260]).sum())
    assert score.calibration.points == int(apart.sum())


def test_a_capped_share_stays_capped_when_a_fit_goes_on(monkeypatch):
    """Of a second set no larger share is held out: its points may have been in the first."""
    monkeypatch.setattr(split, "MOST_POINTS", 25)
    model, inputs = problem(400)
    score = slu(model).fit(inputs)
    threshold = score.state.calibration.held_out.threshold
    assert score.calibration.points == 25 and threshold < 0.09
    fitted = score.diagnostics.points
    assert score.partial_fit(inputs).diagnostics.points == 2 * fitted == 750
    assert score.state.calibration.held_out.threshold == threshold


def test_single_points_that_belong_among_the_held_out_are_never_fitted():
    model, inputs = problem(500)
    apart = held(inputs)
    score = slu(model).fit(inputs[:300])
    points, known = score.diagnostics.points, score.calibration.points
    place = 300 + int(apart[300:].nonzero()[0, 0])
    score.partial_fit(inputs[place : place + 1])
    assert score.diagnostics.points == points and score.calibration.points == known + 1
    place = 300 + int((~apart[300:]).nonzero()[0, 0])
    score.partial_fit(inputs[place : place + 1])
    assert score.diagnostics.points == points + 1 and score.calibration.points == known + 1


def test_going_on_otherwise():
    model, inputs = problem(500)
    own = problem(50, seed=5)[1]
    score = slu(model).fit(inputs[:300], calibration=own).partial_fit(inputs[300:])
    assert score.diagnostics.points == 500 and score.calibration.points == 50
    torch.testing.assert_close(
        score.calibration.scores["variance"], score(own, reading="variance", outputs=1).sort().values
    )
    score.partial_fit(inputs[:20], calibration=False)
    with pytest.raises(SettingError, match="fitted with calibration=False"):
        score.pvalue(own)
    assert score.partial_fit(inputs[:20], calibration=own).calibration.points == 50
    assert slu(model).fit(inputs, calibration=False).partial_fit(inputs).calibration is None


def test_a_loaded_score_that_goes_on_has_the_new_points_only(tmp_path):
    model, inputs = problem(700)
    slu(model).fit(inputs[:400]).save(tmp_path / "net.slu")
    with pytest.warns(CalibrationWarning, match="only their numbers are known, as from a file"):
        score = SLU.load(tmp_path / "net.slu", model).partial_fit(inputs[400:])
    apart = held(inputs)
    assert score.calibration.points == int(apart[400:].sum()) > 0
    both = score.calibrate(list(inputs.split(90)), held_out=True)
    assert both.calibration.points == int(apart.sum()) and both.calibration.source == "held out"
    own = slu(model).fit(inputs[:300], calibration=inputs[300:400])
    own.save(tmp_path / "own.slu")
    with pytest.warns(CalibrationWarning, match="no calibration any more: it was fitted further after loading"):
        gone_on = SLU.load(tmp_path / "own.slu", model).partial_fit(inputs[400:])
    with pytest.raises(SettingError, match="after loading"):
        gone_on.pvalue(inputs)


def test_a_loaded_score_that_goes_on_without_a_point_to_hold_out_has_no_calibration(tmp_path):
    model, inputs = problem(400)
    slu(model).fit(inputs).save(tmp_path / "net.slu")
    more = (inputs + 1)[~held(inputs + 1)][:3]
    with pytest.warns(CalibrationWarning, match="no calibration any more: none of the points that it held out is at"):
        score = SLU.load(tmp_path / "net.slu", model).partial_fit(more)
    with pytest.raises(SettingError, match="is at hand"):
        score.flag(inputs)
    assert score.calibrate(inputs, held_out=True).calibration.points == int(held(inputs).sum())


@pytest.mark.parametrize("once", [False, True])
def test_points_that_are_missing_are_counted_where_the_number_of_all_is_limited(once):
    """The numbers of all points lower the threshold further than the points that are at hand."""
    drawn = [torch.rand(600, generator=torch.Generator().manual_seed(seed)).tolist() for seed in (0, 1)]
    known = [HeldOut(1.0, tuple(sorted(each))) for each in drawn]
    numbers = known[0].joined(known[1], 1000, once=once)
    points = [Reservoir(1.0, 1000, points=[HeldPoint(u, None, None) for u in each[:450]]) for each in drawn]
    both = points[0].joined(points[1], once=once)
    missing = len(numbers.numbers) - len(both.within(numbers))
    assert len(numbers.numbers) == 1000 and len(both) == 900
    assert missing == sum(u < numbers.threshold for each in drawn for u in each[450:])


def test_merged_scores_are_calibrated_on_what_all_of_them_left_out(tmp_path):
    model, inputs = problem(600)
    apart = held(inputs)
    first = slu(model).fit(inputs[:300])
    shards = [first, slu(model, scale=first.scale).fit(inputs[300:])]
    merged = SLU.merge(shards)
    assert merged.calibration.points == int(apart.sum())
    for reading in GRADIENT_READINGS:
        expected = merged(inputs[apart], reading=reading, outputs=1).sort().values
        torch.testing.assert_close(merged.calibration.scores[reading], expected, rtol=1e-9, atol=1e-12)
    shards[1].save(tmp_path / "net.slu")
    loaded = SLU.merge([shards[0], SLU.load(tmp_path / "net.slu", model)])
    with pytest.raises(SettingError, match=r"score 1 of those it was merged from.*loaded.*score\.calibrate"):
        loaded.threshold()
    loaded.calibrate(inputs, held_out=True)
    torch.testing.assert_close(loaded.calibration.scores["fisher"], merged.calibration.scores["fisher"])


@pytest.mark.filterwarnings("ignore:the .* calibration points have only 12 distinct:slu.errors.CalibrationWarning")
def test_shards_that_have_equal_points_keep_those_of_both():
    """Two halves of 300 points, 12 contents, each with its own copies; the same points given to both count once."""
    model, inputs = problem(12)
    first = slu(model).fit(inputs.repeat(25, 1))
    second = slu(model, scale=first.scale).fit(inputs.repeat(25, 1))
    merged = SLU.merge([first, second])
    points = first.calibration.points
    assert merged.calibration.points == 2 * points == 2 * second.calibration.points
    # The shards drew their copies by the same numbers, so the points of the second say nothing new.
    assert merged.calibration.independent == points and first.calibration.independent == points
    assert f"{2 * points} points ({points} independent), held out" in str(merged.calibration)
    with pytest.raises(SettingError, match=f"the smallest p-value of {points} calibration points"):
        merged.flag(inputs, false_alarms=1 / (1 + 1.5 * points))
    given = [slu(model, scale=first.scale).fit(inputs, calibration=inputs.repeat(3, 1)) for _ in range(2)]
    assert SLU.merge(given).calibration.points == 36


def _interrupted(*_, **__):
    raise KeyboardInterrupt


def test_a_partial_fit_that_is_stopped_while_it_calibrates_leaves_no_stale_p_values(monkeypatch):
    model, inputs = problem()
    score = slu(model).fit(inputs)
    monkeypatch.setattr(score, "read_uncalibrated", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        score.partial_fit(inputs + 1)
    with pytest.raises(SettingError, match="its fit was interrupted while it calibrated"):
        score.pvalue(inputs)
    monkeypatch.undo()
    # What was held out so far is still known to be.
    both = torch.cat([inputs, inputs + 1])
    assert score.calibrate(both, held_out=True).calibration.points == int(held(both).sum())


def test_merging_with_what_is_not_calibrated_says_which_and_why():
    model, inputs = problem(600)
    whole = slu(model).fit(inputs[:300])
    shard = slu(model, scale=whole.scale)  # shards that are merged have one scale
    given = shard.fit(inputs[300:500], calibration=inputs[500:])
    for other, why in (
        (shard.fit(inputs[300:337]), "fewer than 38"),
        (shard.fit(inputs[300:], calibration=False), "calibration=False"),
    ):
        merged = SLU.merge([whole, other])
        with pytest.raises(SettingError, match=f"score 1 of those it was merged from.*{why}"):
            merged.flag(inputs)
        # A shard had points in its fit that the other would have held out.
        with pytest.raises(SettingError, match="held no points out"):
            merged.calibrate(inputs, held_out=True)
    with pytest.raises(SettingError, match="held-out and on given"):
        SLU.merge([whole, given]).flag(inputs)
    both = SLU.merge([given, shard.fit(inputs[:300], calibration=inputs[500:])])
    assert both.calibration.points == 100 and both.calibration.source == "given", "the same points count once"


def test_calibrate_says_what_it_cannot():
    model, inputs = problem()
    score = slu(model).fit(inputs)
    with pytest.raises(DataError, match="none of these points was held out"):
        score.calibrate(inputs[~held(inputs)], held_out=True)
    with pytest.raises(SettingError, match="held no points out"):
        slu(model).fit(inputs, calibration=False).calibrate(inputs, held_out=True)
    with pytest.raises(DataError, match="no batch"):
        score.calibrate([])


def test_points_held_out_by_their_targets_are_found_again_with_these():
    model, _ = network("mlp")
    inputs = torch.randn(100, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).repeat(6, 1)
    targets = torch.arange(len(inputs)) % 3
    score = SLU(model, "classification", rank=4, scale=None, curvature="empirical-fisher").fit((inputs, targets))
    before = score.calibration.scores["combined"]
    with pytest.raises(DataError, match=r"batch 0 has inputs alone.*held points out by their inputs and targets"):
        score.calibrate(inputs, held_out=True)
    score.calibrate((inputs.flip(0), targets.flip(0)), held_out=True)
    torch.testing.assert_close(score.calibration.scores["combined"], before)


def contents(points):
    return sorted(map(tuple, points.tolist()))


def calibrated_on(score):
    return contents(torch.cat([point.inputs for point in score.state.calibration.reservoir.points]))


@pytest.mark.parametrize("way", ["partial_fit", "loaded", "merge", "stopped"])
def test_copies_in_other_calls_and_shards_are_not_taken_for_held_out(way, tmp_path, monkeypatch):
    """Each of them numbers copies anew: the second in all data is the first of its call, and was fitted there.

    The same points given to both calls are held out once, points of two shards twice.
    """
    model, inputs = problem(600)
    apart = sorted(contents(inputs[held(inputs)]) * (2 if way == "merge" else 1))
    method = slu(model, scale=None)
    score = method.fit(inputs)
    if way == "merge":
        score = SLU.merge([score, method.fit(inputs.flip(0))])
    elif way == "stopped":
        with monkeypatch.context() as patch:
            patch.setattr(score, "read_uncalibrated", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                score.partial_fit(inputs)
    else:
        score.partial_fit(inputs)
    if way == "loaded":
        score.save(tmp_path / "net.slu")
        score = SLU.load(tmp_path / "net.slu", model)
    score.calibrate(inputs.repeat(2, 1), held_out=True)
    assert calibrated_on(score) == apart
    # Later calls keep to it, whatever calibrated the score meanwhile.
    score.calibrate(problem(50, seed=5)[1]).calibrate(list(inputs.repeat(3, 1).split(70)), held_out=True)
    assert calibrated_on(score) == apart
    with pytest.raises(DataError, match="none of these points was held out"):
        score.calibrate(inputs[~held(inputs)].repeat(3, 1), held_out=True)
    # Control: of one call all copies count, each by a number of its own.
    one = method.fit(inputs.repeat(2, 1))
    expected = calibrated_on(one)
    assert calibrated_on(one.calibrate(inputs.repeat(2, 1), held_out=True)) == expected != apart


@pytest.mark.filterwarnings("ignore:the .* calibration points have only . distinct:slu.errors.CalibrationWarning")
def test_held_out_points_are_found_as_often_as_they_were_held_out(tmp_path):
    """Nine contents in three shards: in all data at once their copies have other numbers than in the shards."""
    model, inputs = problem(9)
    shards = [inputs.repeat(40, 1), inputs[:5].repeat(60, 1), inputs[3:].repeat(50, 1)]
    first = slu(model).fit(shards[0])
    merged = SLU.merge([first, *(slu(model, scale=first.scale).fit(shard) for shard in shards[1:])])
    merged.save(tmp_path / "net.slu")
    expected = calibrated_on(merged)
    loaded = SLU.load(tmp_path / "net.slu", model).calibrate(torch.cat(shards).flip(0), held_out=True)
    assert calibrated_on(loaded) == expected and len(expected) > 5 * len(set(expected))
    assert str(loaded.calibration) == str(merged.calibration)


def test_held_out_points_that_are_not_among_the_data_are_missed_aloud():
    model, inputs = problem(600)
    score = slu(model).fit(inputs)
    apart = held(inputs)
    found, missing = int(apart[:400].sum()), int(apart[400:].sum())
    assert found >= 19 and missing
    with pytest.warns(CalibrationWarning, match=rf"{missing} of the {found + missing} points that were held out"):
        score.calibrate(inputs[:400], held_out=True)
    assert score.calibration.points == found
    assert score.state.calibration.missing == missing
    with pytest.warns(CalibrationWarning, match=rf"{missing} of the \d+ points"):
        merged = SLU.merge([score, slu(model, scale=score.scale).fit(inputs + 1)])
    assert merged.state.calibration.missing == missing, "they are not forgotten"
    score.calibrate(inputs, held_out=True)  # no warning, which would be an error here
    assert not score.state.calibration.missing


@pytest.mark.filterwarnings("ignore:the .* calibration points have only . distinct:slu.errors.CalibrationWarning")
@pytest.mark.filterwarnings("ignore:the score has .* calibration inputs, held out:slu.errors.CalibrationWarning")
def test_points_held_out_with_what_their_targets_leave_out_are_found_with_these_targets():
    """Without them an input that was fitted could be taken for one that was held out."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 3)).double()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 9, (80, 5), generator=generator).repeat(3, 1)
    targets = torch.randint(0, 3, (240, 5), generator=generator)
    targets[:80, 0], targets[80:160, 2:4] = -100, -100
    method = SLU(model, "classification", rank=4, scale=None)
    score = method.fit((tokens, targets))
    before, expected = score.calibration.scores["combined"], calibrated_on(score)
    with pytest.warns(CalibrationWarning, match="with the same targets"):
        score.calibrate(tokens, held_out=True)
    # Nothing is left out of the last 80, so that they are known without targets.
    found = calibrated_on(score)
    assert 0 < len(found) < len(expected) and set(found) <= set(contents(tokens[160:]))
    score.calibrate((tokens.flip(0), targets.flip(0)), held_out=True)
    assert calibrated_on(score) == expected
    torch.testing.assert_close(score.calibration.scores["combined"], before)
    with pytest.raises(DataError, match="with the same targets"):
        method.fit((tokens[:160], targets[:160])).calibrate(tokens[:160], held_out=True)


@pytest.mark.filterwarnings("ignore:with fewer than 38 points:slu.errors.CalibrationWarning")
def test_after_a_call_that_held_nothing_out_fitted_points_are_not_looked_for(tmp_path):
    model, inputs = problem(400)
    score = slu(model, rank=1).fit(inputs[:37]).partial_fit(inputs[37:])
    before = score.state.calibration.held_out
    assert before.threshold > 0 and before.numbers is None and bool(held(inputs[:37]).any()), "some first ones would be"
    merged = SLU.merge([score, slu(model, rank=1, scale=score.scale).fit(inputs)])
    score.save(tmp_path / "net.slu")
    for each in (score, merged, SLU.load(tmp_path / "net.slu", model), score.partial_fit(inputs[37:])):
        with pytest.raises(SettingError, match=r"too few points to hold any out.*give points it has not seen"):
            each.calibrate(inputs, held_out=True)
        assert each.calibrate(inputs + 1).calibration.points == 400


def test_the_model_is_untouched_and_inference_mode_is_fine(tmp_path):
    model, inputs = problem()
    before = snapshot(model)
    with torch.inference_mode():
        data = inputs + 0
        score = slu(model).fit(data)
        merged = SLU.merge([score, slu(model, scale=score.scale).fit(data + 1)])
        for ask in (merged.pvalue, merged.flag, merged.explain, merged.calibrate, merged.partial_fit):
            ask(data)
    assert_same(before, snapshot(model))
    torch.testing.assert_close(score.pvalue(inputs), slu(model).fit(inputs).pvalue(inputs))
