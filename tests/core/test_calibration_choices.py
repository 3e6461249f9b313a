"""Calibrations by other rows than the default's: made when they are needed, kept and stored, or refused."""

import threading

import pytest
import torch

from calibrated import COMBINED, FAR, combined, held, problem, slu, with_distances
from shorthand import pulls
from slu import SLU, Probes, SluScore
from slu.artifacts import read
from slu.core.readout import GRADIENT_READINGS
from slu.errors import SettingError


def held_points(score):
    return torch.cat([batch for batch, _ in score.state.calibration.reservoir.batches()])


def counted(monkeypatch):
    """How often calibration points were scored, and by which rows."""
    taken, plain = [], SluScore.read_uncalibrated

    def noted(self, data, outputs, progress, predicted, *others):
        if predicted is not None:  # not the few that are also scored alone
            taken.append(outputs)
        return plain(self, data, outputs, progress, predicted, *others)

    monkeypatch.setattr(SluScore, "read_uncalibrated", noted)
    return taken


@pytest.mark.parametrize("outputs", [2, "all", Probes(3)], ids=str)
def test_another_choice_is_scored_once_and_kept(outputs, monkeypatch):
    model, inputs = problem(400)
    score = slu(model).fit(inputs)
    assert score.calibration.outputs == 1 and score.state.calibration.others == {}
    fresh, own = 1.3 * problem(40, seed=3)[1], held_points(score)
    taken = counted(monkeypatch)
    for reading in (*GRADIENT_READINGS, COMBINED):
        scores, values = (ask(fresh, reading=reading, outputs=outputs) for ask in (score, score.pvalue))
        known = score.state.calibration.others[outputs].scores[reading]
        expected = (1 + (known >= scores.double()[:, None]).sum(1)).double() / (1 + len(known))
        assert torch.equal(values, expected)
        assert torch.equal(score.flag(fresh, reading=reading, outputs=outputs, false_alarms=0.2), values <= 0.2)
        assert torch.equal(scores > score.threshold(0.2, reading=reading, outputs=outputs), values <= 0.2)
        if reading != COMBINED:
            direct = score(own, reading=reading, outputs=outputs).sort().values.double()
            torch.testing.assert_close(known, direct, rtol=1e-9, atol=1e-12)
    assert taken == [outputs], "scored once"
    pairs = [(points, score.read_all(points, outputs=outputs)) for points in (own, fresh)]
    known, new = with_distances(model, inputs[~held(inputs)], *pairs)
    torch.testing.assert_close(score(fresh, outputs=outputs), combined(new, known), rtol=1e-8, atol=1e-8)
    assert score.calibration.outputs == 1 and list(score.state.calibration.others) == [outputs]


def test_the_papers_readings_are_judged_by_all_outputs(monkeypatch):
    model, inputs = problem(400)
    score = slu(model).fit(inputs)
    taken = counted(monkeypatch)
    values = score.pvalue(inputs[:30], reading="variance")
    assert taken == ["all"] and torch.equal(values, score.pvalue(inputs[:30], reading="variance", outputs="all"))
    assert not torch.equal(values, score.pvalue(inputs[:30], reading="variance", outputs=1))
    for reading in ("max-logit", "entropy", *FAR):
        values = score.pvalue(inputs[:30], reading=reading)
        assert torch.equal(values, score.pvalue(inputs[:30], reading=reading, outputs=3))
    assert taken == ["all"], "what measures no rows needs no other points"


def test_threads_that_ask_at_once_score_the_points_once(monkeypatch):
    model, inputs = problem(400)
    score = slu(model).fit(inputs)
    taken = counted(monkeypatch)
    values, barrier = [None] * 6, threading.Barrier(6)

    def ask(place):
        barrier.wait()
        values[place] = score.pvalue(inputs[:20], outputs="all")

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken == ["all"] and all(torch.equal(values[0], each) for each in values)


def test_files_have_all_that_there_are_and_a_loaded_score_no_points(tmp_path):
    model, inputs = problem(400)
    score = slu(model).fit(inputs)
    for outputs in ("all", Probes(3)):
        score.threshold(outputs=outputs)
    score.save(tmp_path / "net.slu")
    assert read(tmp_path / "net.slu")[0]["format"] == 2
    again = SLU.load(tmp_path / "net.slu", model)
    for outputs in (None, 1, "all", Probes(3)):
        for reading in (None, "fisher", COMBINED):
            asked = {"reading": reading, "outputs": outputs}
            assert torch.equal(again.pvalue(inputs, **asked), score.pvalue(inputs, **asked))
    assert torch.equal(again.pvalue(inputs, reading="variance"), score.pvalue(inputs, reading="variance"))
    for ask in (
        lambda: again.pvalue(inputs, outputs=2),
        lambda: again(inputs, outputs=2),
        lambda: again.threshold(outputs=2),
    ):
        with pytest.raises(SettingError, match=r"outputs=2 .* outputs=1, .*score\.calibrate\(loader, outputs=2\)"):
            ask()
    assert bool(torch.isfinite(again(inputs, reading="fisher", outputs=2)).all()), "a score alone needs no points"
    again.calibrate(inputs, held_out=True, outputs=2)
    torch.testing.assert_close(again(inputs), score(inputs, outputs=2), rtol=1e-9, atol=1e-9)


def test_a_file_from_before_the_choice_was_of_all_outputs(tmp_path):
    model, inputs = problem(400)
    score = slu(model).fit(inputs).calibrate(inputs[:90], outputs="all")
    tensors, plain = score.state.to_file()
    calibration = {key: value for key, value in plain["calibration"].items() if key not in ("outputs", "others")}
    selection = score.settings.network.selection
    earlier = type(score.state).from_file(tensors, plain | {"calibration": calibration}, selection, score.sketch)
    assert earlier.calibration.calibration.outputs == "all"


@pytest.mark.parametrize("outputs", [2, "all", Probes(2)], ids=str)
def test_calibrate_sets_what_the_combined_reading_measures(outputs, monkeypatch, tmp_path):
    model, inputs = problem(400)
    score = slu(model).fit(inputs)
    expected, values = score(inputs, outputs=outputs), score.pvalue(inputs, outputs=outputs)
    score.calibrate(inputs, held_out=True, outputs=outputs)
    assert score.calibration.outputs == outputs and score.state.calibration.others == {}
    torch.testing.assert_close(score(inputs), expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(score.pvalue(inputs), values)
    fresh = problem(5, seed=3)[1]  # a calibration point has a p-value that rounding may change
    explanation = score.explain(fresh)
    torch.testing.assert_close(explanation.readings[COMBINED], score(fresh), rtol=1e-9, atol=1e-9)
    assert torch.equal(explanation.pvalues, score.pvalue(fresh))
    # The choice stays when the points are scored anew.
    score.partial_fit(inputs[:50] + 1)
    assert score.calibration.outputs == outputs
    assert score.calibrate(inputs[:90]).calibration.outputs == outputs
    score.save(tmp_path / "net.slu")
    assert SLU.load(tmp_path / "net.slu", model).calibration.outputs == outputs
    shard = slu(model, scale=score.scale)
    shards = [shard.fit(part).calibrate(inputs[:90], outputs=outputs) for part in (inputs[90:250], inputs[250:])]
    assert SLU.merge(shards).calibration.outputs == outputs


def test_after_more_data_other_choices_are_scored_anew():
    model, inputs = problem(500)
    score = slu(model).fit(inputs[:300])
    score.threshold(outputs="all")
    score.partial_fit(inputs[300:])
    assert score.state.calibration.others == {}
    known = score(held_points(score), reading="fisher", outputs="all").sort().values
    score.threshold(reading="fisher", outputs="all")
    torch.testing.assert_close(score.state.calibration.others["all"].scores["fisher"], known, rtol=1e-9, atol=1e-12)


def test_errors_of_probes_come_with_the_combined_reading():
    model, inputs = problem(400)
    score = slu(model).fit(inputs)
    scores, errors = score(inputs[:9], outputs=Probes(4), return_error=True)
    assert torch.equal(scores, score(inputs[:9], outputs=Probes(4)))
    assert scores.shape == errors.shape == (9,) and errors.dtype == scores.dtype
    # Of three classes two signs count, so that four probes may all be the same, and have no error.
    of_fisher = score(inputs[:9], reading="fisher", outputs=Probes(4), return_error=True)[1]
    assert torch.equal(errors > 0, of_fisher > 0) and int((errors > 0).sum()) > 5
    every = score.read_all(inputs[:9], outputs=Probes(4), return_error=True)
    assert all(bool((every[name][1] == 0).all()) for name in ("max-logit", "entropy")), "no gradients, no error"
    many = score(list(inputs[:9].split(4)), outputs=Probes(4), return_error=True)
    torch.testing.assert_close(many[1], errors, rtol=1e-7, atol=1e-10)


def test_explanations_measure_the_outputs_beside_the_readings(monkeypatch):
    model, inputs = problem(400)
    score = slu(model).fit(inputs)
    exact = score(inputs[:6], reading="fisher", per_output=True)
    score.explain(inputs[:6])
    taken = pulls(monkeypatch)
    explanation = score.explain(inputs[:6])
    assert taken == [(6, 3 + 1)]
    shares = exact / exact.sum(1, keepdim=True)
    torch.testing.assert_close(explanation.contributions, shares.sort(1, descending=True).values)
    torch.testing.assert_close(explanation.readings["fisher"], score(inputs[:6], reading="fisher"))
    fresh = problem(6, seed=3)[1]  # a calibration point has a p-value that rounding may change
    assert torch.equal(score.explain(fresh).pvalues, score.pvalue(fresh))
