"""The readout: one table of readings, the combined one by its formula, and all of them from the same gradients."""

from pathlib import Path

import pytest
import torch

from calibrated import COMBINED, FAR, combined, former_sum, held, problem, slu, with_distances
from oracles import LIKELIHOODS, network
from shorthand import pulls
from slu import SLU, Probes
from slu.core.directions import ALL, FISHER, JACOBIAN
from slu.core.readout import GRADIENT_READINGS, READINGS, Reading
from slu.errors import MismatchError, SettingError


def calibrated_conv():
    model, inputs = network("conv")
    return SLU(model, "classification", rank=4, sketch="identity").fit(inputs, calibration=0.7 * inputs), inputs


def test_readings_share_the_gradients_of_their_rows(monkeypatch):
    score, inputs = calibrated_conv()
    one_by_one = {reading: score(inputs, reading=reading) for reading in score.readings}
    taken = pulls(monkeypatch)
    readings = score.read_all(inputs, readings=score.readings)
    assert set(FAR) < set(readings)
    # Three outputs for the paper's readings, one direction for the others.
    assert taken == [(12, 3 + 1)]
    for reading in score.readings:
        torch.testing.assert_close(readings[reading], one_by_one[reading])


@pytest.mark.parametrize(
    ("outputs", "expected"), [(None, 1), (1, 1), (2, 2), (7, 3), ("all", 3), (Probes(4), 4)], ids=str
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
    with pytest.raises(SettingError, match="'max-logit' is not defined for the likelihood"):
        score(inputs, reading="max-logit")


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_entropy_is_that_of_the_prediction_and_takes_no_gradient(likelihood, monkeypatch):
    """Of classes, and summed over labels; a regression has none."""
    model, inputs = problem()
    score = slu(model, likelihood).fit(inputs)
    assert ("entropy" in score.readings) == ("entropy" in score.read_all(inputs[:3])) == (likelihood != "regression")
    if likelihood == "regression":
        with pytest.raises(SettingError, match="'entropy' is not defined for the likelihood Regression"):
            score(inputs, reading="entropy")
        return
    outputs = model(inputs).detach()
    if likelihood == "classification":
        expected = torch.distributions.Categorical(logits=outputs).entropy()
    else:
        expected = torch.distributions.Bernoulli(logits=outputs).entropy().sum(1)
    taken = pulls(monkeypatch)
    scores = score(inputs, reading="entropy")
    assert not taken and scores.dtype == torch.float64
    torch.testing.assert_close(scores, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("reading", ["max-logit", "entropy", *FAR, COMBINED])
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
    data = inputs
    if source == "held out":
        own = torch.cat([batch for batch, _ in score.state.calibration.reservoir.batches()])
        data = inputs[~held(inputs)]
    assert score.calibration.source == source and len(own) == score.calibration.points > 20
    fresh = 1.5 * problem(30, seed=6)[1]
    pairs = [(points, score.read_all(points, outputs=outputs or 1)) for points in (own, fresh)]
    known, new = with_distances(model, data, *pairs)
    scores = score(fresh, outputs=outputs)
    torch.testing.assert_close(scores, combined(new, known), rtol=1e-9, atol=1e-9)
    used = score.calibration if outputs is None else score.state.calibration.others[outputs]
    torch.testing.assert_close(used.scores[COMBINED], combined(known, known).sort().values, rtol=1e-9, atol=1e-9)
    # Controls: the former sum, the formula without one of its views, and other rows are other numbers.
    assert not torch.allclose(former_sum(new, known), scores, atol=0.1)
    for left_out in ("entropy", "distance"):
        fewer = {name: values for name, values in known.items() if name != left_out}
        assert torch.allclose(combined(new, fewer), scores, atol=0.01) == (left_out not in known)
    assert not torch.allclose(scores, score(fresh, outputs=1 if outputs else "all"), atol=0.01)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_without_layers_the_variance_takes_their_place(likelihood):
    """After Lanczos, whose passes do not show the layers' inputs."""
    model, inputs = problem(400)
    own, fresh = problem(50, seed=5)[1], 1.5 * problem(30, seed=6)[1]
    score = slu(model, likelihood, solver="lanczos").fit(inputs, calibration=own)
    assert not set(FAR) & set(score.readings)
    known, new = (score.read_all(points, outputs=1) for points in (own, fresh))
    torch.testing.assert_close(score(fresh), combined(new, known), rtol=1e-9, atol=1e-9)
    for reading in FAR:
        with pytest.raises(SettingError, match=rf"'{reading}' needs statistics of layers' inputs.*solver='stream'"):
            score(fresh, reading=reading)


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
    monkeypatch.setitem(READINGS, "spread", Reading(lambda energies: _spread(energies.outputs)))
    torch.testing.assert_close(score(inputs, reading="spread"), _spread(model(inputs)).detach())
    assert "spread" in score.readings
    with pytest.raises(SettingError, match="spread"):
        score.pvalue(inputs, reading="spread")  # its calibration points were not read so
    assert "spread" in score.calibrate(inputs[:60]).calibration.scores


def _spread(outputs):
    return outputs.double().std(1)


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
    monkeypatch.setattr("slu.core.standard.VIEWS", (("variance", "fisher"), ("max-logit",)))
    again = SLU.load(tmp_path / "net.slu", score.settings.network.model)
    assert torch.equal(again(inputs), before) and torch.equal(again.pvalue(inputs), pvalues)
    assert not torch.equal(again.calibrate(0.7 * inputs)(inputs), before)  # control: the table does decide
    # Not delitem, which would put the reading back at the end of the table.
    older = {name: row for name, row in READINGS.items() if name != "entropy"}
    monkeypatch.setattr("slu.core.calibration.READINGS", older)
    with pytest.raises(MismatchError, match=r"uses \['entropy'\], which this version"):
        SLU.load(tmp_path / "net.slu", score.settings.network.model)
