"""Points of a query that are not finite: infinity for them, and the scores of the others bit for bit."""

import dataclasses
import warnings

import pytest
import torch
from torch import nn

from oracles import network
from positions import seeded
from slu import SLU
from slu.baselines import GradNorm, LocalEnsemble, Mahalanobis, MaxLogit
from slu.core.readout import READINGS
from slu.errors import DataError, NotFiniteError, NotFiniteWarning

BAD = [torch.nan, torch.inf, -torch.inf]
each_network = pytest.mark.parametrize("name", ["mlp", "conv", "encoder"])


def data_of(name, points=60):
    model, some = network(name)
    draw = torch.Generator().manual_seed(3)
    if some.is_floating_point():
        return model, torch.randn(points, *some.shape[1:], dtype=some.dtype, generator=draw)
    return model, some[torch.randint(len(some), (points,), generator=draw)]


@pytest.fixture
def fitted():
    model, inputs = data_of("mlp")
    return SLU(model, "classification", rank=4).fit(inputs), inputs


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_others_are_as_beside_a_copy_of_one_of_them(name, bad):
    model, inputs = data_of(name)
    score = SLU(model, "classification", rank=4).fit(inputs)
    spoiled, replaced = inputs[:8].clone(), inputs[:8].clone()
    spoiled[3].view(-1)[1] = bad
    replaced[3] = inputs[0]
    others = [0, 1, 2, 4, 5, 6, 7]
    for reading in score.readings:
        with pytest.warns(
            NotFiniteWarning, match="1 of 8 points are not finite: the inputs of batch 0 hold .* place 3"
        ):
            actual = score(spoiled, reading=reading)
        assert float(actual[3]) == torch.inf
        assert torch.equal(actual[others], score(replaced, reading=reading)[others])


def test_one_warning_per_call_counts_all_and_names_the_first(fitted):
    score, inputs = fitted
    spoiled = inputs.clone()
    spoiled[[9, 30, 31]] = torch.nan
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scores = score(list(spoiled.split(4)))
    (warning,) = caught
    assert warning.category is NotFiniteWarning
    assert "3 of 60 points are not finite: the inputs of batch 2 hold NaN or infinity, first at place 1" in str(
        warning.message
    )
    assert scores.isposinf().nonzero()[:, 0].tolist() == [9, 30, 31]


def test_no_warning_and_no_change_for_finite_points(fitted):
    score, inputs = fitted
    assert bool(score(inputs).isfinite().all())  # warnings are errors


def test_it_is_flagged_and_has_the_smallest_pvalue(fitted):
    score, inputs = fitted
    spoiled = inputs[:6].clone()
    spoiled[2] = torch.nan
    with pytest.warns(NotFiniteWarning):
        pvalues = score.pvalue(spoiled)
    assert float(pvalues[2]) == 1 / (1 + score.calibration.points)
    with pytest.warns(NotFiniteWarning):
        assert bool(score.flag(spoiled)[2])
    with pytest.warns(NotFiniteWarning):
        assert float(score(spoiled)[2]) > score.threshold()


@pytest.mark.filterwarnings("ignore::slu.errors.CalibrationWarning")
def test_it_is_flagged_by_a_score_of_too_few_points():
    model, inputs = network("mlp")
    score = SLU(model, "classification", rank=2).fit(inputs)
    spoiled = inputs.clone()
    spoiled[2] = torch.nan
    with pytest.warns(NotFiniteWarning):
        assert score.flag(spoiled).nonzero()[:, 0].tolist() == [2]


class Overflowing(nn.Module):
    """Outputs, or only gradients, of points with a large first input are not finite."""

    def __init__(self, where):
        super().__init__()
        self.where, self.layer = where, nn.Linear(4, 3).double()

    def forward(self, inputs):
        outputs = self.layer(inputs)
        if self.where == "outputs":
            return outputs / (inputs[:, :1] < 1e5)
        return outputs.detach() + (outputs - outputs.detach()) * (1 + 1e240 * (inputs[:, :1] > 1e5).double())


@pytest.mark.parametrize("where", ["outputs", "gradients"])
@pytest.mark.parametrize("places", [[5], [0, 5], list(range(8))])
def test_what_overflows_in_the_model_is_infinity_too(where, places):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Overflowing(where)
    inputs = torch.randn(60, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    score = SLU(model, "classification", rank=2).fit(inputs)
    spoiled, others = inputs[:8].clone(), [place for place in range(8) if place not in places]
    spoiled[places, 0] = 1e8
    with pytest.warns(NotFiniteWarning, match=f"{len(places)} of 8 points .*{where}"):
        actual = score(spoiled)
    assert actual.isposinf().nonzero()[:, 0].tolist() == places
    replaced = spoiled.clone()
    if others:
        replaced[places] = spoiled[others[0]]
        assert torch.equal(actual[others], score(replaced)[others])


LARGE = {
    "relu": lambda: (nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)), (6,)),
    "normed": lambda: (nn.Sequential(nn.Linear(6, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 3)), (6,)),
    "conv": lambda: (nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)), (1, 8, 8)),
}


@pytest.mark.filterwarnings("ignore::slu.errors.NotFiniteWarning")
@pytest.mark.parametrize("likelihood", ["classification", "regression"])
@pytest.mark.parametrize("name", LARGE)
def test_an_input_however_large_has_a_score_and_flag_and_threshold_agree(name, likelihood):
    """In float32, of which the squares of 1e20 overflow; sums over outputs overflow a little before."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, shape = LARGE[name]()
        inputs = torch.randn(300, *shape)
    score = SLU(model, likelihood, rank=4).fit(inputs)
    infinite = 0
    for size in (1e10, 1e18, 5e18, 1e19, 5e19, 1e20, 1e25, 1e38):
        queries, others = inputs[:6].clone(), [0, 1, 3, 4, 5]
        queries[2] *= size / queries[2].norm()
        for reading in score.readings:
            scores, pvalues = score(queries, reading=reading), score.pvalue(queries, reading=reading)
            flags = score.flag(queries, reading=reading)
            assert not bool(scores.isnan().any()), (size, reading)
            assert torch.equal(flags, scores > score.threshold(reading=reading)), (size, reading)
            torch.testing.assert_close(scores[others], score(inputs[others], reading=reading), rtol=1e-3, atol=1e-4)
            if scores[2].isinf():
                infinite += 1
                assert bool(flags[2]) and float(pvalues[2]) == 1 / (1 + score.calibration.points)
    assert infinite or name == "normed"


def test_a_score_that_overflows_in_a_sum_is_told(fitted, monkeypatch):
    """Gradients are finite, and a reading of them is not."""
    score, inputs = fitted
    plain = READINGS["fisher"]

    def overflowing(measured):
        return torch.where(measured.outputs[:, 0] == score_of[2], torch.nan, plain.score(measured))

    with torch.no_grad():
        score_of = score.settings.network.model(inputs[:5])[:, 0]
    monkeypatch.setitem(READINGS, "fisher", dataclasses.replace(plain, score=overflowing))
    for reading in ("fisher", "combined"):
        with pytest.warns(NotFiniteWarning, match="1 of 5 points are not finite: scores of batch 0"):
            assert score(inputs[:5], reading=reading).isposinf().tolist() == [False, False, True, False, False]


def test_padded_positions_of_an_input_that_is_not_finite_stay_padded():
    """Infinity at the positions that count, NaN at the others, whatever the point that stands in is like."""
    model = seeded(Padded)
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 5, 4, generator=draw, dtype=torch.float64)
    mask = (torch.arange(5) < torch.randint(2, 6, (60, 1), generator=draw)).long()
    mask[:2] = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    score = SLU(model, "classification", rank=4).fit({"x": inputs, "attention_mask": mask})
    queries = inputs[:6].clone()
    queries[1, 0, 0] = torch.nan
    batch = {"x": queries, "attention_mask": mask[:6]}
    with pytest.warns(NotFiniteWarning, match="1 of 6"):
        scores = score(batch)
    assert scores[1].isposinf().tolist() == [True, True, True, False, False]
    assert torch.equal(scores.isnan(), mask[:6] == 0)
    with pytest.warns(NotFiniteWarning):
        assert float(score(batch, reduce="max")[1]) == torch.inf


class Padded(nn.Module):
    """A row of outputs for every position."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, attention_mask):
        return self.layer(x * attention_mask[..., None])


def test_per_output_errors_and_all_readings(fitted):
    score, inputs = fitted
    spoiled = inputs[:4].clone()
    spoiled[1] = torch.nan
    with pytest.warns(NotFiniteWarning):
        rows = score(spoiled, reading="fisher", per_output=True)
    assert rows.isposinf().any(1).tolist() == [False, True, False, False] and bool(rows[1].isposinf().all())
    with pytest.warns(NotFiniteWarning):
        every = score.read_all(spoiled)
    assert all(values.isposinf().tolist() == [False, True, False, False] for values in every.values())


def test_what_all_points_share_is_refused(fitted):
    model, inputs = data_of("mlp")
    score = SLU(model, "classification", rank=2, forward=lambda model, both: model(both[0] * both[1])).fit(
        [((inputs, torch.ones(4)), None)]
    )
    with pytest.raises(NotFiniteError, match="inputs of batch 0 hold NaN"):
        score([((inputs, torch.tensor([1.0, torch.nan, 1.0, 1.0])), None)])


@pytest.mark.parametrize("method", [GradNorm, LocalEnsemble, Mahalanobis, MaxLogit])
def test_baselines_have_the_same_rule(method):
    model, inputs = data_of("mlp")
    targets = torch.arange(len(inputs)) % 3
    score = {
        "MaxLogit": lambda: MaxLogit(model),
        "LocalEnsemble": lambda: LocalEnsemble(model, "classification", rank=2),
    }.get(method.__name__, lambda: method(model, "classification"))().fit([(inputs, targets)])
    spoiled, replaced = inputs[:6].clone(), inputs[:6].clone()
    spoiled[2], replaced[2] = torch.nan, inputs[0]
    with pytest.warns(NotFiniteWarning, match="1 of 6"):
        actual = score(spoiled)
    others = [0, 1, 3, 4, 5]
    assert float(actual[2]) == torch.inf and torch.equal(actual[others], score(replaced)[others])


def test_a_fit_and_a_calibration_refuse_them(fitted):
    score, inputs = fitted
    spoiled = inputs.clone()
    spoiled[7] = torch.nan
    for call in (score.calibrate, score.partial_fit, score.explain, SLU(network("mlp")[0], "classification").fit):
        with pytest.raises(DataError, match="hold NaN or infinity, first at place 7"):
            call(spoiled)
