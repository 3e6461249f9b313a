"""P-values and thresholds from numbers alone."""

import json
import math

import pytest
import torch

from calibrated import COMBINED, FAR, combined
from distant import soft_maximum
from slu.core.calibration import Calibration
from slu.errors import DamagedFileError, DataError, SettingError

READINGS = ("variance", "relative", "fisher", "fisher-relative", "entropy", "max-logit")
RATES = (0.01, 0.05, 0.1, 0.2, 1 / 3, 0.5, 0.999, 1.0)


def calibration(points=99, seed=0, digits=None):
    """Scores of all readings of a classifier; rounded to few digits they have ties."""
    draw = torch.Generator().manual_seed(seed)
    values = {name: torch.rand(points, generator=draw, dtype=torch.float64) + 0.5 for name in READINGS}
    if digits is not None:
        values = {name: value.mul(10**digits).round() / 10**digits for name, value in values.items()}
    return Calibration.of(values, "given"), values


@pytest.mark.parametrize("digits", [None, 1])
@pytest.mark.parametrize("points", [1, 19, 99, 250])
def test_pvalues_count_calibration_points_at_least_as_unsure(points, digits):
    made, values = calibration(points, digits=digits)
    fresh = torch.linspace(0.3, 1.7, 57, dtype=torch.float64).mul(10).round() / 10
    for name in READINGS:
        expected = [(1 + sum(v >= s for v in values[name].tolist())) / (1 + points) for s in fresh.tolist()]
        assert made.pvalue(fresh, name).tolist() == pytest.approx(expected, abs=0)
        below = [100 * sum(v < s for v in values[name].tolist()) / points for s in fresh.tolist()]
        assert made.percentile(fresh, name).tolist() == pytest.approx(below)
    assert float(made.pvalue(torch.tensor([1e300]), "fisher")) == 1 / (1 + points) > 0


@pytest.mark.parametrize("digits", [None, 1])
@pytest.mark.parametrize("points", [1, 9, 19, 20, 99, 100, 199, 999])
def test_above_the_threshold_is_the_same_as_a_p_value_at_the_rate(points, digits):
    """Also at scores that tie with calibration points, and at rates that no binary number meets."""
    made, values = calibration(points, digits=digits)
    scores = torch.cat([values["fisher"], torch.linspace(0.3, 1.7, 29, dtype=torch.float64)])
    tried = 0
    for rate in RATES:
        if rate * (1 + points) < 1 and rate < 0.05:
            continue
        flagged = made.pvalue(scores, "fisher") <= made.check_rate(rate)
        assert torch.equal(flagged, scores > made.threshold(rate, "fisher"))
        tried += 1
    assert tried


def test_a_threshold_lets_through_what_it_should():
    made = Calibration.of({name: torch.arange(1.0, 100.0) for name in READINGS}, "given")
    # (1 + #{c >= s}) / 100 <= 0.05 from four points on: 96 to 99, so above 95.
    # A tie reaches up to 4 R above a calibration point; R is that of float32 here.
    assert 95.0 < made.threshold(0.05, "variance") < 95.001
    assert 99.0 < made.threshold(0.01, "variance") < 99.001
    assert made.threshold(1.0, "variance") == -math.inf


@pytest.mark.parametrize("rate", [0, -0.1, 1.5, "5 %", float("nan"), True])
def test_rates_that_are_none(rate):
    with pytest.raises(SettingError, match="false_alarms"):
        calibration()[0].threshold(rate, "fisher")


@pytest.mark.parametrize(("points", "rate", "least"), [(18, 0.049, 20), (98, 0.01, 99), (600, 1e-3, 999)])
def test_too_few_points_for_a_rate_say_how_many_are_needed(points, rate, least):
    with pytest.raises(SettingError, match=f"{points} calibration points.* {least} points are needed"):
        calibration(points)[0].threshold(rate, "fisher")
    calibration(least)[0].threshold(rate, "fisher")


@pytest.mark.parametrize(("points", "rate", "least"), [(18, 0.05, 19), (9, 0.08, 12), (1, 1 / 3, 2)])
def test_too_few_points_for_the_default_rate_flag_nothing(points, rate, least):
    """No p-value is as low, which is valid; of the default rate the fit has warned."""
    made, _ = calibration(points)
    assert made.threshold(rate, "fisher") == math.inf
    assert not bool((made.pvalue(torch.tensor([1e300]), "fisher") <= made.check_rate(rate)).any())
    assert math.isfinite(calibration(least)[0].threshold(rate, "fisher"))


def test_an_unknown_reading_names_the_known():
    with pytest.raises(SettingError, match="'combined'"):
        calibration()[0].threshold(0.05, "fishy")


def test_the_combined_scores_of_the_calibration_points_are_kept_with_the_others():
    made, values = calibration(50)
    torch.testing.assert_close(made.scores[COMBINED], combined(values, values).sort().values, rtol=1e-12, atol=1e-12)
    for name in READINGS:
        assert torch.equal(made.scores[name], values[name].sort().values)
    assert set(made.standard.scales) == {"fisher", "fisher-relative", "variance", "entropy"}
    assert Calibration.of({name: torch.ones(1) for name in READINGS}, "given").points == 1


def test_the_farthest_layers_of_the_calibration_points_are_kept_with_the_others():
    """From (m, 2 L) squared distances: the soft maximum of standardized logarithms, over the layers of each half."""
    _, values = calibration(50)
    distances = torch.rand(50, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    made = Calibration.of(values, "given", distances=distances)
    logs = distances.log().numpy()
    heights = (logs - logs.mean(0)) / logs.std(0, ddof=1)
    values |= {"distance": soft_maximum(heights[:, :3], 1), "angle": soft_maximum(heights[:, 3:], 1)}
    for name in (*READINGS, *FAR):
        expected = torch.as_tensor(values[name]).sort().values
        torch.testing.assert_close(made.scores[name], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(made.scores[COMBINED], combined(values, values).sort().values, rtol=1e-12, atol=1e-12)
    assert set(made.standard.scales) == {"fisher", "fisher-relative", "entropy", *FAR}
    # Layers that are the same for all points say nothing, and without any the variance takes their place.
    blank = Calibration.of(calibration(50)[1], "given", distances=torch.ones(50, 6))
    assert not set(FAR) & set(blank.scores) and "variance" in blank.standard.scales


def test_scores_that_are_not_finite_are_refused():
    values = {name: torch.ones(3) for name in READINGS}
    values["variance"] = torch.tensor([1.0, math.inf, 2.0])
    with pytest.raises(DataError, match="not finite"):
        Calibration.of(values, "given")


@pytest.mark.parametrize("layers", [False, True])
def test_to_a_file_and_back(layers):
    made, values = calibration(30)
    if layers:
        draw = torch.Generator().manual_seed(1)
        made = Calibration.of(values, "given", distances=torch.rand(30, 4, generator=draw).double())
    tensors, plain = made.to_file()
    again = Calibration.from_file(tensors["calibration"], json.loads(json.dumps(plain, allow_nan=False)))
    assert again.standard == made.standard and again.source == made.source and again.points == 30
    assert all(torch.equal(again.scores[name], made.scores[name]) for name in made.scores)
    assert "30 points" in str(again)


@pytest.mark.parametrize("harm", ["missing", "shape", "order", "nan"])
def test_numbers_that_do_not_fit_the_header_are_refused(harm):
    tensors, plain = calibration(30)[0].to_file()
    values = tensors["calibration"]
    changed = {
        "missing": None,
        "shape": values[:3],
        "order": values.flip(1),
        "nan": values.clone().index_fill_(1, torch.tensor([4]), math.nan),
    }[harm]
    with pytest.raises(DamagedFileError, match="calibration"):
        Calibration.from_file(changed, plain)


@pytest.mark.parametrize("rounding", [None, 1, True, [], {"nonsense": 1e-6}, {"variance": 0.0}])
def test_rounding_that_no_calibration_has_is_refused(rounding):
    tensors, plain = calibration(30)[0].to_file()
    with pytest.raises(DamagedFileError, match=r"rounding|variance"):
        Calibration.from_file(tensors["calibration"], {**plain, "rounding": rounding})
