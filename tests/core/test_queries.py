"""Points of a query that are not finite: infinity for them, and the scores of the others bit for bit."""

import warnings

import pytest
import torch
from torch import nn

from oracles import network
from slu import SLU
from slu.baselines import GradNorm, LocalEnsemble, Mahalanobis, MaxLogit
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
