"""Distances of layers' inputs from the data, against NumPy in float64 on inputs that were computed by hand."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from calibrated import FAR
from distant import farthest, folded, folding, layer_inputs, soft_maximum, squared_distances
from oracles import LIKELIHOODS, NETWORKS, network
from slu import SLU
from slu.core.distances import Folding
from slu.errors import CalibrationWarning
from watched import Calls


def fitted(model, inputs, likelihood="classification", **settings):
    """SLU as a user gets it, with calibration points of their own where there are few."""
    own = {"calibration": 0.7 * inputs + 0.1} if len(inputs) < 200 else {}
    return SLU(model, likelihood, rank=4, **settings).fit(inputs, **own)


def queries(inputs):
    return 1.5 * inputs[:5] + 0.3


def distances(score, points):
    return score.read_uncalibrated(points, 1, False)[1]


def assert_statistics(layers, data, width=64, seed=0, tolerance=1e-10):
    """Mean and covariance of every layer, and then of its directions."""
    assert tuple(data) == layers.names
    expected = folded(data, width, seed)
    assert layers.points == len(expected[0]) and len(layers.unpacked()) == len(expected)
    for (mean, covariance), values in zip(layers.unpacked(), expected, strict=True):
        np.testing.assert_allclose(mean, values.mean(0), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(
            covariance, np.atleast_2d(np.cov(values, rowvar=False)), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", NETWORKS)
def test_statistics_distances_and_readings_are_the_dense_formulas(kind, likelihood):
    model, inputs = network(kind)
    score = fitted(model, inputs, likelihood)
    own, fresh = 0.7 * inputs + 0.1, queries(inputs)
    data, known, new = (layer_inputs(kind, model, points) for points in (inputs, own, fresh))
    assert_statistics(score.state.layers, data)
    expected = squared_distances(data, new)
    # Twelve points do not span 48 numbers: a distance is the ridge's then, whose condition number is 10⁴.
    torch.testing.assert_close(distances(score, fresh), torch.from_numpy(expected), rtol=1e-7, atol=0)
    for name, values in farthest(data, known, new).items():
        torch.testing.assert_close(score(fresh, reading=name), torch.from_numpy(values), rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(
            score.calibration.scores[name],
            torch.from_numpy(np.sort(farthest(data, known, known)[name])),
            rtol=1e-7,
            atol=1e-7,
        )
    # Controls: without the ridge, or of other data, these are other numbers.
    assert not np.allclose(squared_distances(known, new), expected, rtol=0.01)


@pytest.mark.parametrize("kind", NETWORKS)
def test_batches_do_not_matter(kind):
    model, inputs = network(kind)
    method = SLU(model, "classification", rank=4)
    own, fresh = 0.7 * inputs + 0.1, queries(inputs)
    whole = method.fit(inputs, calibration=own)
    for sizes in ([1] * 12, [1, 11], [5, 5, 2], [7, 1, 4]):
        other = method.fit(list(inputs.split(sizes)), calibration=list(own.split(sizes)))
        for one, two in zip(whole.state.layers.unpacked(), other.state.layers.unpacked(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(distances(other, fresh), distances(whole, fresh), rtol=1e-7, atol=0)
        for size in (1, 2, 5):
            for reading in FAR:
                batches = other(list(fresh.split(size)), reading=reading)
                torch.testing.assert_close(batches, whole(fresh, reading=reading), rtol=1e-7, atol=1e-7)


def wide(dtype=torch.float64):
    """Layers of 100, 70 and 5 inputs, and 150 points."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = (nn.Linear(100, 70), nn.Tanh(), nn.Linear(70, 5), nn.Tanh(), nn.Linear(5, 3))
        return nn.Sequential(*layers).to(dtype), torch.randn(150, 100, dtype=torch.float64).to(dtype)


@torch.no_grad()
def wide_inputs(model, inputs):
    hidden = model[:2](inputs)
    layers = {"0": inputs, "2": hidden, "4": model[2:4](hidden)}
    return {name: value.double().numpy() for name, value in layers.items()}


@pytest.mark.parametrize(("width", "seed"), [(64, 0), (64, 3), (32, 0), (16, 0), (8, 0)])
def test_long_inputs_are_folded_by_a_signed_matrix(width, seed):
    model, inputs = wide()
    numbers = sum(min(d, width) * (min(d, width) + 3) for d in (100, 70, 5))
    # A quarter of the budget is enough for this width, and too little for twice as much.
    score = SLU(model, "classification", budget=max(4 * numbers, 2_500), seed=seed).fit(
        inputs, calibration=0.8 * inputs
    )
    layers = score.state.layers
    assert (
        layers.folding.width == width
        and layers.folding.numbers == numbers == layers.mean.numel() + layers.covariance.numel()
    )
    data, known, new = (wide_inputs(model, points) for points in (inputs, 0.8 * inputs, queries(inputs)))
    assert_statistics(layers, data, width, seed)
    expected = squared_distances(data, new, width, seed)
    torch.testing.assert_close(distances(score, queries(inputs)), torch.from_numpy(expected), rtol=1e-7, atol=0)
    for name, values in farthest(data, known, new, width=width, seed=seed).items():
        torch.testing.assert_close(score(queries(inputs), reading=name), torch.from_numpy(values), rtol=1e-7, atol=1e-7)
    assert not np.allclose(squared_distances(data, new, width, seed + 1), expected, rtol=0.01)  # control


def test_the_signed_matrix_has_one_entry_per_column_and_even_rows():
    for size, width in ((100, 64), (70, 8), (65, 64)):
        matrix = folding(size, width, "layer")
        assert (np.abs(matrix).sum(0) == 1).all()
        assert np.ptp(np.abs(matrix).sum(1)) <= 1, "as many in each row as go"
        values = torch.randn(7, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        made = Folding(("layer",), (size,), width, 0)({"layer": values})
        np.testing.assert_allclose(made[0], values.numpy() @ matrix.T, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(made[1].norm(dim=1), np.ones(7), rtol=1e-12)
    # Distances of points are kept on average over seeds: a sum with random signs is unbiased in squares.
    values = torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    squares = [float(np.square(folding(100, 8, "layer", seed) @ values).sum()) for seed in range(400)]
    error = np.std(squares) / 20
    assert abs(np.mean(squares) - np.square(values).sum()) < 3.3 * error


def test_far_from_zero_nothing_cancels():
    """A mean a million times the deviation; sums of squares would keep four digits."""
    model, inputs = network("mlp")
    far = inputs + 1e6
    score = SLU(model, "regression", rank=4).fit(list(far.split(5)), calibration=False)
    mean, covariance = score.state.layers.unpacked()[0]
    np.testing.assert_allclose(mean, far.numpy().mean(0), rtol=1e-12)
    np.testing.assert_allclose(covariance, np.cov(far.numpy(), rowvar=False), rtol=1e-7, atol=1e-7)


def with_side(change):
    """A network of which a layer, `side`, is given a function of the inputs, and has no part in the outputs."""

    def call(self, x):
        self.side(change(x)).detach()
        return self.out(self.into(x).tanh())

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Calls(call, into=nn.Linear(4, 6), side=nn.Linear(4, 2), out=nn.Linear(6, 3)).double()


def data(points=300):
    return torch.randn(points, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_a_layer_that_is_constant_has_no_part():
    inputs = data()
    score = fitted(with_side(torch.ones_like), inputs)
    assert score.state.layers.names == ("side", "into", "out")
    assert [scale is None for scale in score.calibration.standard.layers.scales] == [True, False, False] * 2
    without = fitted(with_side(lambda x: x * torch.tensor(torch.nan)), inputs)  # not finite: left out of the fit
    assert without.state.layers.names == ("into", "out")
    for reading in FAR:
        torch.testing.assert_close(
            score(inputs, reading=reading), without(inputs, reading=reading), rtol=1e-9, atol=1e-9
        )
    assert set(score.explain(3 * inputs[:50]).layers["distance"]) == {"into", "out"}


def test_units_that_are_never_active_are_finite_and_show_when_they_are():
    """Zero for all data; where they are not, a hundredth of the layer's deviation is what they are measured by."""

    def dead(x):
        active = (x[:, :1] > 50).to(x)
        return torch.cat([x[:, :3], active * x[:, 3:]], 1)

    inputs = data()
    model = with_side(dead)
    score = fitted(model, inputs)
    odd = inputs[:5].clone()
    odd[:, 0] = 51.0
    rest = inputs[~held_rows(score, inputs)]
    layers = [{"side": dead(points).numpy()} for points in (rest, odd)]
    place = score.state.layers.names.index("side")
    expected = squared_distances(*layers)
    assert np.isfinite(expected).all()
    found = distances(score, odd)
    torch.testing.assert_close(found[:, [place, 3 + place]], torch.from_numpy(expected), rtol=1e-7, atol=0)
    quiet = odd.clone()
    quiet[:, 3] = 0.0
    assert bool((found[:, place] > 1.05 * distances(score, quiet)[:, place]).all()), "the silent unit shows"
    assert bool(score(inputs).isfinite().all())


def held_rows(score, inputs):
    kept = torch.cat([batch for batch, _ in score.state.calibration.reservoir.batches()])
    return (inputs[:, None] == kept).all(2).any(1)


def test_networks_whose_layers_are_all_constant_have_no_distances():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(4, 3)

        def forward(self, x):
            return self.out(torch.ones_like(x))

    inputs = data().float()
    with pytest.warns(CalibrationWarning, match="have the same score"):
        score = SLU(Constant(), "classification", rank=3).fit(inputs)
    assert not set(FAR) & set(score.readings) and score.readings[0] == "combined"
    assert score.pvalue(inputs[:5]).tolist() == [1.0] * 5
    assert bool(score(inputs[:5]).isfinite().all())
    assert not bool(score.flag(5 * inputs).any())


def test_inputs_that_overflow_are_infinitely_far():
    """Of a layer that the outputs do not show: exp of 1,000 is infinite."""
    inputs = data()
    score = fitted(with_side(torch.exp), inputs)
    odd = inputs[:3].clone()
    odd[1, 0] = 1000.0
    odd[2, 0] = 30.0  # large, but a number
    place = score.state.layers.names.index("side")
    found = distances(score, odd)
    assert found[1, place] == math.inf and bool(found[[0, 2]].isfinite().all())
    for reading in ("distance", "combined"):
        scores = score(odd, reading=reading)
        assert scores[1] == math.inf and bool(scores[[0, 2]].isfinite().all())
        assert float(score.pvalue(odd, reading=reading)[1]) == 1 / (1 + score.calibration.points)
    assert bool(score.flag(odd)[1]) and float(scores[2]) > float(score.calibration.scores["combined"].max())
    told = score.explain(odd)
    assert told.raised_by[1] in FAR and told.reasons[1].endswith("layer 'side'")
    str(told)
    # Calibration points whose distance is infinite take their layer out, not the others.
    recalibrated = score.calibrate(torch.cat([inputs[:60], odd]))
    assert recalibrated.calibration.standard.layers.scales[place] is None
    assert bool(recalibrated(odd, reading="distance").isfinite().all())


def test_layers_that_a_query_does_not_call_are_left_out():
    model = with_side(lambda x: x**3)
    inputs = data()
    score = fitted(model, inputs)
    names, before = score.state.layers.names, {name: score(inputs, reading=name) for name in (*FAR, "combined")}
    place = names.index("side")
    plain = distances(score, inputs[:9])
    model._call = lambda self, x: self.out(self.into(x).tanh())
    found = distances(score, inputs[:9])
    assert bool(found[:, [place, 3 + place]].isnan().all())
    others = [each for each in range(6) if each % 3 != place]
    torch.testing.assert_close(found[:, others], plain[:, others])
    heights = score.calibration.standard.layers(plain)
    for half, reading in enumerate(FAR):
        left = [3 * half + each for each in range(3) if each != place]
        expected = torch.from_numpy(soft_maximum(heights[:, left].numpy(), 1))
        torch.testing.assert_close(score(inputs[:9], reading=reading), expected, rtol=1e-9, atol=1e-9)
        assert not torch.allclose(before[reading][:9], expected)
    assert bool(score(inputs).isfinite().all()) and not torch.equal(score(inputs), before["combined"])


def test_without_any_layer_at_a_query_the_other_views_decide():
    statistics = fitted(network("mlp")[0], network("mlp")[1]).state.layers
    assert bool(statistics.distances({}, 4).isnan().all()) and statistics.distances({}, 4).shape == (4, 4)
    model = with_side(torch.sin)
    score = fitted(model, data())
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def functional(self, x):
        hidden = nn.functional.linear(x, weights["into.weight"], weights["into.bias"]).tanh()
        return self.out.weight.new_zeros(len(x), 3) + hidden @ self.out.weight.T + self.out.bias

    model._call = functional
    assert bool(score(data()[:5], reading="distance").isnan().all())
    views = score.calibration.standard.standardized(
        score.read_all(data()[:5], readings=list(score.calibration.standard.scales))
    )
    expected = soft_maximum(views[:2].numpy(), 0)
    torch.testing.assert_close(score(data()[:5]), torch.from_numpy(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-25, 1e18, 1e25])
def test_units_far_from_one_in_float32(scale):
    """A variance of 1e50 is no number in float32: such a layer is left out, and the file is whole."""
    model, inputs = with_side(lambda x: scale * x).float(), data().float()
    score = fitted(model, inputs)
    layers = score.state.layers
    assert bool(layers.mean.isfinite().all()) and bool(layers.covariance.isfinite().all())
    assert {"into", "out"} <= set(layers.names) and ("side" in layers.names) == (scale != 1e25)
    plain = fitted(with_side(lambda x: x).float(), inputs)
    usual, far = score.pvalue(inputs), score(20 * inputs)
    assert float(usual.median()) > 0.3 and bool((far > score.threshold(0.05)).float().mean() > 0.95)
    assert bool(score(inputs).isfinite().all()) and bool(plain(inputs).isfinite().all())


def test_functional_networks_have_none():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.holder = nn.ParameterList([nn.Parameter(torch.randn(3, 4))])

        def forward(self, x):
            return nn.functional.linear(x, self.holder[0])

    inputs = data().float()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        score = SLU(Functional(), "classification", rank=3).fit(inputs)
    assert score.state.layers is None and not set(FAR) & set(score.readings)
    assert {name for view in score.calibration.standard.views for name in view} == {
        "fisher", "fisher-relative", "entropy", "variance",
    }  # fmt: skip
