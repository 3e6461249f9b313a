"""The readout: one table of readings, the combined one by its formula, and all of them from the same gradients."""

from pathlib import Path

import pytest
import torch

from calibrated import COMBINED, combined, former_sum, problem, slu
from oracles import LIKELIHOODS, network
from shorthand import pulls
from slu import SLU, Probes
from slu.core.directions import ALL, FISHER, JACOBIAN
from slu.core.readout import GRADIENT_READINGS, READINGS, Reading, ReadingScale, Standard
from slu.errors import MismatchError, SettingError


def calibrated_conv():
    model, inputs = network("conv")
    return SLU(model, "classification", rank=4, sketch="identity").fit(inputs, calibration=0.7 * inputs), inputs


def test_readings_share_the_gradients_of_their_rows(monkeypatch):
    score, inputs = calibrated_conv()
    one_by_one = {reading: score(inputs, reading=reading) for reading in score.readings}
    taken = pulls(monkeypatch)
    readings = score.read_all(inputs, readings=score.readings)
    # Three outputs for the paper's readings, one direction for the others.
    assert taken == [(12, 3 + 1)]
    for reading in score.readings:
        torch.testing.assert_close(readings[reading], one_by_one[reading])


@pytest.mark.parametrize(
    ("outputs", "expected"), [(None, 1), (1, 1), (2, 2), (7, 3), ("all", 6), (Probes(4), 8)], ids=str
)
def test_so_many_gradients_for_combined(outputs, expected, monkeypatch):
    score, inputs = calibrated_conv()
    score(inputs, outputs=outputs)  # its calibration points are scored
    taken = pulls(monkeypatch)
    score(inputs, outputs=outputs)
    assert taken == [(12, expected)]


def test_max_logit_takes_no_gradient(monkeypatch):
    score, inputs = calibrated_conv()
    taken = pulls(monkeypatch)
    scores = score(inputs, reading="max-logit")
    assert not taken
    model = score.settings.network.model.eval()
    assert torch.equal(scores, -model(inputs).detach().max(1).values.double())


@pytest.mark.parametrize("likelihood", ["regression", "multilabel"])
def test_max_logit_is_of_classes_only(likelihood):
    model, inputs = problem()
    score = slu(model, likelihood).fit(inputs)
    assert "max-logit" not in score.readings and "max-logit" not in score.read_all(inputs[:3])
    with pytest.raises(SettingError, match="'max-logit' is for classification"):
        score(inputs, reading="max-logit")


@pytest.mark.parametrize("reading", ["max-logit", COMBINED])
def test_readings_of_an_input_are_not_read_per_output(reading):
    model, inputs = problem()
    with pytest.raises(SettingError, match="one number per input"):
        slu(model).fit(inputs)(inputs, reading=reading, per_output=True)


@pytest.mark.parametrize("outputs", [None, 2, "all", Probes(3)], ids=str)
@pytest.mark.parametrize("source", ["held out", "given"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_combined_is_the_soft_maximum_of_the_standardized_views(likelihood, source, outputs):
    """By NumPy from the other readings of the same score, on points of one's own and on those that were held out."""
    model, inputs = problem(400)
    own = problem(50, seed=5)[1]
    score = slu(model, likelihood).fit(inputs, calibration=own if source == "given" else None)
    if source == "held out":
        own = torch.cat([batch for batch, _ in score.state.calibration.reservoir.batches()])
    assert score.calibration.source == source and len(own) == score.calibration.points > 20
    fresh = 1.5 * problem(30, seed=6)[1]
    known, new = (score.read_all(points, outputs=outputs or 1) for points in (own, fresh))
    scores = score(fresh, outputs=outputs)
    torch.testing.assert_close(scores, combined(new, known), rtol=1e-9, atol=1e-9)
    used = score.calibration if outputs is None else score.state.calibration.others[outputs]
    torch.testing.assert_close(used.scores[COMBINED], combined(known, known).sort().values, rtol=1e-9, atol=1e-9)
    # Controls: the former sum, the formula without its last view, and other rows are other numbers.
    assert not torch.allclose(former_sum(new, known), scores, atol=0.1)
    fewer = {name: known[name] for name in ("fisher", "fisher-relative", "variance")}
    assert torch.allclose(combined(new, fewer), scores, atol=0.01) == (likelihood != "classification")
    assert not torch.allclose(scores, score(fresh, outputs=1 if outputs else "all"), atol=0.01)


def test_another_unit_of_a_positive_reading_changes_nothing():
    draw = torch.Generator().manual_seed(0)
    known, fresh = (
        {name: torch.rand(n, generator=draw, dtype=torch.float64) + 0.1 for name in READINGS if name != COMBINED}
        for n in (40, 9)
    )
    expected = Standard.of(known).soft_maximum(fresh)
    torch.testing.assert_close(expected, combined(fresh, known), rtol=1e-12, atol=1e-12)
    for name in ("fisher", "fisher-relative", "variance"):
        other = Standard.of({**known, name: 1e-9 * known[name]})
        torch.testing.assert_close(other.soft_maximum({**fresh, name: 1e-9 * fresh[name]}), expected)
    shifted = Standard.of({**known, "max-logit": known["max-logit"] + 7})
    torch.testing.assert_close(shifted.soft_maximum({**fresh, "max-logit": fresh["max-logit"] + 7}), expected)


def test_a_view_that_is_very_sure_does_not_outvote_another():
    """What a sum does: one view at -30 hides another at +6."""
    scales = {name: ReadingScale(0.0, 1.0, floor=1e-30) for name in ("fisher", "fisher-relative", "variance")}
    standard = Standard({**scales, "max-logit": ReadingScale(0.0, 1.0, None)})
    scores = {name: torch.full((1,), value).double() for name, value in (("fisher", -30.0), ("fisher-relative", -9.0))}
    scores = {name: value.exp() for name, value in scores.items()} | {"variance": torch.tensor([6.0]).exp()}
    assert float(standard.soft_maximum({**scores, "max-logit": torch.tensor([-20.0])})) == pytest.approx(6.0, abs=1e-6)


@pytest.mark.parametrize("bad", [0.0, -1e-3])
def test_scores_without_a_logarithm_are_floored(bad):
    values = torch.linspace(0.1, 1, 20, dtype=torch.float64)
    values[3] = bad
    scale = ReadingScale.of(values, positive=True)
    assert scale.floor == pytest.approx(1e-4)
    standardized = scale(torch.tensor([bad, 1e-4, 1e-5, 0.1, 0.5]))
    assert bool(torch.isfinite(standardized).all())
    assert float(standardized[0]) == pytest.approx(float(standardized[1]))
    assert float(standardized[1]) == float(standardized[2])
    assert bool((standardized[2:].diff() > 0).all()), "above the floor order is kept"
    assert ReadingScale.of(values, positive=False).floor is None


def test_nothing_above_zero_and_all_alike_are_no_nan():
    for value in (0.0, 3.0):
        for positive in (True, False):
            assert bool(
                (ReadingScale.of(torch.full((5,), value), positive)(torch.full((2,), value)).abs() < 1e-9).all()
            )
    assert ReadingScale.of(torch.ones(1), positive=True).deviation == 1.0


def test_a_new_reading_is_one_function_and_one_row(monkeypatch):
    """Here the largest share of a single output, of both kinds of rows; read, calibrated, saved and loaded."""

    def largest(energies):
        values = energies.value(energies.rows[FISHER]) + energies.value(energies.rows[JACOBIAN])
        return values.amax(-1)

    monkeypatch.setitem(READINGS, "largest", Reading(largest, (JACOBIAN, FISHER), ALL))
    model, inputs = problem()
    score = slu(model, "regression").fit(inputs)
    assert "largest" in score.readings
    # Of a regression L is the identity, so that both kinds of rows are the same.
    expected = 2 * score(inputs[:9], reading="variance", per_output=True).amax(1)
    torch.testing.assert_close(score(inputs[:9], reading="largest"), expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(score.read_all(inputs[:9])["largest"], expected, rtol=1e-9, atol=0)
    values = score.pvalue(inputs[:9], reading="largest")
    assert bool((values > 0).all()) and score.threshold(0.1, reading="largest") > 0
    assert bool((score.flag(inputs[:9], reading="largest", false_alarms=0.3) == (values <= 0.3)).all())


def test_a_reading_added_after_the_fit_is_read_without_fitting_anew(monkeypatch):
    model, inputs = problem()
    score = slu(model).fit(inputs)
    monkeypatch.setitem(READINGS, "entropy", Reading(lambda energies: _entropy(energies.outputs)))
    torch.testing.assert_close(score(inputs, reading="entropy"), _entropy(model(inputs)).detach())
    assert "entropy" in score.readings
    with pytest.raises(SettingError, match="entropy"):
        score.pvalue(inputs, reading="entropy")  # its calibration points were not read so
    assert "entropy" in score.calibrate(inputs[:60]).calibration.scores


def _entropy(outputs):
    return torch.distributions.Categorical(logits=outputs).entropy()


def test_the_table_and_the_docs_list_the_same():
    page = (Path(__file__).parents[2] / "docs" / "readings.md").read_text(encoding="utf-8")
    for name in READINGS:
        assert f"\n| {name} |" in page, name
    assert set(GRADIENT_READINGS) < set(READINGS) and COMBINED not in GRADIENT_READINGS


def test_a_fitted_score_keeps_the_views_it_was_calibrated_with(monkeypatch, tmp_path):
    """Of another version that combines other readings, or does not have one of them any more."""
    score, inputs = calibrated_conv()
    before, pvalues = score(inputs), score.pvalue(inputs)
    score.save(tmp_path / "net.slu")
    monkeypatch.setattr("slu.core.readout.VIEWS", (("variance", "fisher"), ("max-logit",)))
    again = SLU.load(tmp_path / "net.slu", score.settings.network.model)
    assert torch.equal(again(inputs), before) and torch.equal(again.pvalue(inputs), pvalues)
    assert not torch.equal(again.calibrate(0.7 * inputs)(inputs), before)  # control: the table does decide
    # Not delitem, which would put the reading back at the end of the table.
    older = {name: row for name, row in READINGS.items() if name != "max-logit"}
    monkeypatch.setattr("slu.core.calibration.READINGS", older)
    with pytest.raises(MismatchError, match=r"uses \['max-logit'\], which this version"):
        SLU.load(tmp_path / "net.slu", score.settings.network.model)
