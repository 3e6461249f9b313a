"""Readings standardized on calibration points and their soft maximum, from numbers alone."""

import json
import math

import numpy as np
import pytest
import torch

from calibrated import FAR, combined, former_sum, problem, slu
from distant import soft_maximum as plain_maximum
from slu.core.calibration import Calibration
from slu.core.readout import READINGS
from slu.core.standard import TEMPERATURE, VIEWS, WITHOUT_LAYERS, LayerScales, ReadingScale, Standard, soft_maximum
from slu.likelihoods import Classification

inf, nan = math.inf, math.nan
POSITIVE = {name: row.positive for name, row in READINGS.items()}
NAMES = ("variance", "fisher", "fisher-relative", "entropy", *FAR)


def numbers(count, seed=0):
    """(count,) positive scores by reading."""
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.rand(count, generator=draw, dtype=torch.float64) + 0.1 for name in NAMES}


def standard(known, layers=None):
    return Standard.of(known, POSITIVE, layers)


def far(scales, distances):
    return {name: scales.farthest(distances, name) for name in FAR}


@pytest.mark.parametrize("temperature", [0.05, 0.5, 1.0, 3.0])
def test_the_soft_maximum_is_its_formula_and_lies_above_the_maximum(temperature):
    values = torch.randn(4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = soft_maximum(values, 0, temperature)
    torch.testing.assert_close(found, torch.from_numpy(plain_maximum(values.numpy(), 0, temperature)))
    above = found - values.amax(0)
    assert bool((above >= 0).all()) and bool((above <= temperature * math.log(4) + 1e-12).all())
    torch.testing.assert_close(soft_maximum(values, 1), soft_maximum(values.T, 0, TEMPERATURE))


def test_the_soft_maximum_of_large_numbers_does_not_overflow():
    assert float(soft_maximum(torch.tensor([1e6, -1e6]).double(), 0)) == 1e6
    # Control: the plain formula does.
    with np.errstate(over="ignore"):
        assert np.isinf(plain_maximum(np.array([1e6, -1e6]), 0))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.0, nan], 2.0),
        ([nan, 2.0, nan], 2.0),
        ([nan, nan], nan),
        ([inf, 0.0], inf),
        ([inf, nan], inf),
        ([-inf, 1.0], 1.0),
        ([-inf, -inf], -inf),
        ([-inf, nan], -inf),
        ([inf, -inf], inf),
    ],
)
def test_what_is_no_number_is_left_out_and_infinity_stays(values, expected):
    found = float(soft_maximum(torch.tensor(values, dtype=torch.float64), 0))
    assert found == expected or (math.isnan(found) and math.isnan(expected))


def test_the_views_by_numpy():
    known, fresh = numbers(40), numbers(9, seed=1)
    found = standard(known)
    assert [tuple(view) for view in found.views] == list(VIEWS) and found.temperature == 0.5
    torch.testing.assert_close(found.combined(fresh), combined(fresh, known), rtol=1e-12, atol=1e-12)
    without = {name: values for name, values in known.items() if name not in FAR}
    plain = standard(without)
    assert [tuple(view) for view in plain.views] == list(WITHOUT_LAYERS)
    torch.testing.assert_close(plain.combined(fresh), combined(fresh, without), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(plain.combined(fresh), found.combined(fresh), atol=0.01)


def test_another_unit_of_a_positive_reading_changes_nothing():
    known, fresh = numbers(40), numbers(9, seed=1)
    fewer = {name: values for name, values in known.items() if name not in FAR}
    for given in (known, fewer):
        expected = standard(given).combined(fresh)
        for name in {"fisher", "fisher-relative", "variance", "entropy"} & set(given):
            other = standard({**given, name: 1e-9 * given[name]})
            torch.testing.assert_close(other.combined({**fresh, name: 1e-9 * fresh[name]}), expected)
        for name in set(FAR) & set(given):  # not positive: shifted and scaled
            other = standard({**given, name: 3 * given[name] + 7})
            torch.testing.assert_close(other.combined({**fresh, name: 3 * fresh[name] + 7}), expected)
    # Control: of a reading that is not positive, whose logarithm is not taken, a power is another.
    assert not torch.allclose(
        standard({**known, "distance": known["distance"] ** 3}).combined({**fresh, "distance": fresh["distance"] ** 3}),
        standard(known).combined(fresh),
    )


@pytest.mark.parametrize("high", ["entropy", *FAR])
def test_a_view_that_is_very_sure_does_not_outvote_another(high):
    """What a sum does: one view at -30 hides another at +6."""
    scales = {name: ReadingScale(0.0, 1.0, floor=1e-30) for name in ("fisher", "fisher-relative", "entropy")}
    found = Standard({**scales, **{name: ReadingScale(0.0, 1.0, None) for name in FAR}})
    heights = {"fisher": -30.0, "fisher-relative": -9.0, "entropy": -20.0, "distance": -4.0, "angle": -4.0, high: 6.0}
    scores = {
        name: torch.tensor([height if name in FAR else math.exp(height)], dtype=torch.float64)
        for name, height in heights.items()
    }
    assert float(found.combined(scores)) == pytest.approx(6.0, abs=1e-6)
    assert float(sum(found.standardized(scores))) < -10  # control


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


@pytest.mark.parametrize("positive", [True, False])
def test_nothing_above_zero_all_alike_one_point_and_infinity_have_no_scale(positive):
    for values in ([0.0] * 5, [3.0] * 5, [1.0], [1.0, 2.0, inf], [1.0, 2.0, nan], [0.1 + 0.2, 0.3, 0.3]):
        assert ReadingScale.of(torch.tensor(values, dtype=torch.float64), positive) is None
    tiny = torch.tensor([5e-324, 0.0, 1e-310], dtype=torch.float64)  # underflowed: no logarithm of zero, no NaN
    scale = ReadingScale.of(tiny, positive)
    assert scale is None or bool(scale(tiny).isfinite().all())


@pytest.mark.parametrize("left_out", ["fisher", "fisher-relative", "entropy", *FAR])
@pytest.mark.parametrize("how", ["constant", "underflowed", "missing"])
def test_a_reading_without_information_drops_out_and_the_rest_decides(left_out, how):
    known, fresh = numbers(40), numbers(9, seed=1)
    if how == "missing":
        del known[left_out]
        if left_out == "distance":  # all layers are the same for all points, so that there are no directions either
            del known["angle"]
    else:
        known[left_out] = torch.full((40,), 0.0 if how == "underflowed" else 0.7, dtype=torch.float64)
    found = standard(known)
    assert left_out not in found.scales and not any(left_out in view for view in found.views)
    z = {
        name: (np.log(new) - np.log(old).mean()) / np.log(old).std(ddof=1)
        if POSITIVE[name]
        else (new - old.mean()) / old.std(ddof=1)
        for name, new, old in ((name, fresh[name].numpy(), values.numpy()) for name, values in known.items())
        if name != left_out
    }
    table = WITHOUT_LAYERS if "distance" not in known else VIEWS
    views = [[z[name] for name in view if name in z] for view in table]
    expected = plain_maximum(np.stack([sum(view) / np.sqrt(len(view)) for view in views if view]), 0)
    torch.testing.assert_close(found.combined(fresh), torch.from_numpy(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_where_all_is_constant_every_point_is_alike(value):
    """A network whose outputs never change: p-values of 1, no error and no NaN."""
    known = {name: torch.full((30,), value, dtype=torch.float64) for name in NAMES}
    calibration = Calibration.of({name: known[name] for name in NAMES if name not in FAR}, "given")
    same = calibration.standard.combined({name: known[name][:3] for name in known})
    assert bool(same.isfinite().all())
    assert calibration.pvalue(same, "combined").tolist() == [1.0, 1.0, 1.0]


def test_a_layer_that_says_nothing_is_left_out_and_a_reading_that_overflowed_is_not():
    known, fresh = numbers(40), numbers(5, seed=1)
    found = standard(known)
    full = found.combined(fresh)
    fresh["entropy"] = torch.tensor([nan, 0.5, 0.5, inf, 0.0]).double()
    fresh["distance"] = torch.tensor([0.5, inf, nan, 0.5, 0.5]).double()
    scores = found.combined(fresh)
    z = found.standardized(fresh)
    assert math.isnan(float(scores[0])), "not judged by the other views: the score is then infinity, with a warning"
    assert float(scores[2]) == pytest.approx(float(soft_maximum(z[[0, 1, 3], 2], 0))) != pytest.approx(float(full[2]))
    assert scores[1] == scores[3] == inf and math.isfinite(float(scores[4]))


def test_layers_without_information_drop_out_of_distance_and_angle():
    draw = torch.Generator().manual_seed(0)
    known, fresh = (torch.rand(n, 6, generator=draw, dtype=torch.float64) + 0.1 for n in (40, 8))
    known[:, 1] = 2.0  # a constant layer
    known[3, 2] = inf  # a layer that overflows on a calibration point
    scales = LayerScales.of(known)
    assert [scale is None for scale in scales.scales] == [False, True, True, False, False, False]
    fresh[0, 0], fresh[1, 0], fresh[2, 3:] = nan, inf, nan
    found = far(scales, fresh)
    z = lambda place: (fresh[:, place].log() - known[:, place].log().mean()) / known[:, place].log().std()  # noqa: E731
    torch.testing.assert_close(found["distance"][3:], z(0)[3:])
    assert math.isnan(found["distance"][0]) and found["distance"][1] == inf and math.isnan(found["angle"][2])
    expected = plain_maximum(torch.stack([z(3), z(4), z(5)]).numpy(), 0)
    torch.testing.assert_close(found["angle"][3:], torch.from_numpy(expected)[3:])
    nothing = far(LayerScales.of(torch.ones(5, 4, dtype=torch.float64)), fresh[:, :4])
    assert all(bool(values.isnan().all()) for values in nothing.values())


def test_to_plain_data_and_back():
    draw = torch.Generator().manual_seed(0)
    distances = torch.rand(40, 4, generator=draw, dtype=torch.float64)
    distances[:, 1] = 1.0
    layers = LayerScales.of(distances)
    made = standard({**numbers(40), **far(layers, distances)}, layers)
    again = Standard.from_plain(json.loads(json.dumps(made.to_plain(), allow_nan=False)))
    assert again == made
    earlier = Standard.from_plain({key: made.to_plain()[key] for key in ("standard", "views")})
    assert earlier.temperature == 1.0 and earlier.layers is None


def test_control_the_former_sum_is_another_reading():
    known, fresh = numbers(40), numbers(9, seed=1)
    assert not torch.allclose(former_sum(fresh, known), standard(known).combined(fresh), atol=0.1)


class Own:
    """A user's own likelihood, with the four methods alone."""

    def __init__(self):
        for name in ("loss", "hessian_product", "factor_product", "sample"):
            setattr(self, name, getattr(Classification(), name))


@pytest.mark.parametrize("likelihood", ["classification", "regression", "multilabel", "own"])
def test_views_by_likelihood(likelihood):
    """A regression has no entropy, nor has a likelihood that does not say it; all have fisher and the distances."""
    model, inputs = problem()
    likelihood = Own() if likelihood == "own" else likelihood
    views = slu(model, likelihood).fit(inputs).calibration.standard.views
    entropy = likelihood in ("classification", "multilabel")
    expected = [list(view) for view in VIEWS if entropy or view != ("entropy",)]
    assert [list(view) for view in views] == expected
