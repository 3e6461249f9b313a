"""P-values, thresholds and the combined reading from numbers alone."""

import math

import pytest
import torch

from slu.core.calibration import COMBINED, Calibration, Standard
from slu.core.readout import GRADIENT_READINGS
from slu.errors import DamagedFileError, DataError, SettingError

RATES = (0.01, 0.05, 0.1, 0.2, 1 / 3, 0.5, 0.999, 1.0)


def calibration(points=99, seed=0, digits=None):
    """Scores of four readings; rounded to few digits they have ties."""
    draw = torch.Generator().manual_seed(seed)
    values = {name: torch.rand(points, generator=draw, dtype=torch.float64) + 0.5 for name in GRADIENT_READINGS}
    if digits is not None:
        values = {name: value.mul(10**digits).round() / 10**digits for name, value in values.items()}
    return Calibration.of(values, "given"), values


@pytest.mark.parametrize("digits", [None, 1])
@pytest.mark.parametrize("points", [1, 19, 99, 250])
def test_pvalues_count_calibration_points_at_least_as_unsure(points, digits):
    found, values = calibration(points, digits=digits)
    fresh = torch.linspace(0.3, 1.7, 57, dtype=torch.float64).mul(10).round() / 10
    for name in GRADIENT_READINGS:
        expected = [(1 + sum(v >= s for v in values[name].tolist())) / (1 + points) for s in fresh.tolist()]
        assert found.pvalue(fresh, name).tolist() == pytest.approx(expected, abs=0)
        below = [100 * sum(v < s for v in values[name].tolist()) / points for s in fresh.tolist()]
        assert found.percentile(fresh, name).tolist() == pytest.approx(below)
    assert float(found.pvalue(torch.tensor([1e300]), "fisher")) == 1 / (1 + points) > 0


@pytest.mark.parametrize("digits", [None, 1])
@pytest.mark.parametrize("points", [1, 9, 19, 20, 99, 100, 199, 999])
def test_above_the_threshold_is_the_same_as_a_p_value_at_the_rate(points, digits):
    """Also at scores that tie with calibration points, and at rates that no binary number meets."""
    found, values = calibration(points, digits=digits)
    scores = torch.cat([values["fisher"], torch.linspace(0.3, 1.7, 29, dtype=torch.float64)])
    tried = 0
    for rate in RATES:
        if rate * (1 + points) < 1:
            continue
        flagged = found.pvalue(scores, "fisher") <= found.check_rate(rate)
        assert torch.equal(flagged, scores > found.threshold(rate, "fisher"))
        tried += 1
    assert tried


def test_a_threshold_lets_through_what_it_should():
    found = Calibration.of({name: torch.arange(1.0, 100.0) for name in GRADIENT_READINGS}, "given")
    # (1 + #{c >= s}) / 100 <= 0.05 from four points on: 96 to 99, so above 95.
    assert found.threshold(0.05, "variance") == 95.0
    assert found.threshold(0.01, "variance") == 99.0
    assert found.threshold(1.0, "variance") == -math.inf


@pytest.mark.parametrize("rate", [0, -0.1, 1.5, "5 %", float("nan"), True])
def test_rates_that_are_none(rate):
    with pytest.raises(SettingError, match="false_alarms"):
        calibration()[0].threshold(rate, "fisher")


@pytest.mark.parametrize(("points", "rate", "could"), [(18, 0.05, 19), (98, 0.01, 99), (1, 1 / 3, 2), (600, 1e-3, 999)])
def test_too_few_points_for_a_rate_say_how_many_could(points, rate, could):
    with pytest.raises(SettingError, match=f"{points} calibration points.* {could} could"):
        calibration(points)[0].threshold(rate, "fisher")
    calibration(could)[0].threshold(rate, "fisher")


def test_an_unknown_reading_names_the_known():
    with pytest.raises(SettingError, match="'combined'"):
        calibration()[0].threshold(0.05, "fishy")


def test_combined_is_the_sum_of_standardized_logarithms():
    found, values = calibration(50)
    logs = [values[name].log() for name in ("fisher", "fisher-relative")]
    expected = sum((each - each.mean()) / each.std() for each in logs)
    torch.testing.assert_close(found.standard(values), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.scores[COMBINED], expected.sort().values, rtol=1e-12, atol=1e-12)
    # Another unit of the loss is no other reading.
    other = Standard.of({**values, "fisher": 1e-9 * values["fisher"]})
    torch.testing.assert_close(other({**values, "fisher": 1e-9 * values["fisher"]}), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bad", [0.0, -1e-3])
def test_scores_without_a_logarithm_are_floored(bad):
    values = {name: torch.linspace(0.1, 1, 20, dtype=torch.float64) for name in GRADIENT_READINGS}
    values["fisher"][3] = bad
    standard = Calibration.of(values, "given").standard
    assert standard.floors[0] == pytest.approx(1e-4)
    fresh = {"fisher": torch.tensor([bad, 1e-4, 1e-5, 0.1, 0.5]), "fisher-relative": torch.full((5,), 0.5)}
    found = standard(fresh)
    assert bool(torch.isfinite(found).all())
    assert float(found[0]) == pytest.approx(float(found[1])) and float(found[1]) == float(found[2])
    assert bool((found[2:].diff() > 0).all()), "above the floor order is kept"


def test_nothing_above_zero_and_all_alike_are_no_nan():
    for value in (0.0, 3.0):
        found = Calibration.of({name: torch.full((5,), value) for name in GRADIENT_READINGS}, "given")
        assert bool((found.scores[COMBINED].abs() < 1e-9).all())
    assert Calibration.of({name: torch.ones(1) for name in GRADIENT_READINGS}, "given").points == 1


def test_scores_that_are_not_finite_are_refused():
    values = {name: torch.ones(3) for name in GRADIENT_READINGS}
    values["variance"] = torch.tensor([1.0, math.inf, 2.0])
    with pytest.raises(DataError, match="not finite"):
        Calibration.of(values, "given")


def test_stored_and_restored():
    found, _ = calibration(30)
    tensors, plain = found.stored()
    again = Calibration.restored(tensors["calibration"], plain)
    assert again.standard == found.standard and again.source == found.source and again.points == 30
    assert all(torch.equal(again.scores[name], found.scores[name]) for name in found.scores)
    assert "30 points" in str(again)


@pytest.mark.parametrize("harm", ["missing", "shape", "order", "nan"])
def test_numbers_that_do_not_fit_the_header_are_refused(harm):
    tensors, plain = calibration(30)[0].stored()
    values = tensors["calibration"]
    changed = {
        "missing": None,
        "shape": values[:3],
        "order": values.flip(1),
        "nan": values.clone().index_fill_(1, torch.tensor([4]), math.nan),
    }[harm]
    with pytest.raises(DamagedFileError, match="calibration"):
        Calibration.restored(changed, plain)
