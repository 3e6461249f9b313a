"""Statistics of layers' inputs in fits that go on, are merged, stopped, stored or have no room for them."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from calibrated import FAR, Unsized, held, problem, slu
from distant import layer_inputs, squared_distances
from oracles import LIKELIHOODS, network
from slu import SLU, Checkpoint, Lanczos
from slu.artifacts import read
from slu.errors import DamagedFileError, MismatchError, SettingError
from stored import lenet


def assert_same(one, other, exactly=False):
    """Two statistics, to the rounding of float64 or to the bit."""
    assert (one.folding, one.points) == (other.folding, other.points)
    for name in ("mean", "covariance"):
        first, second = getattr(one, name), getattr(other, name)
        if exactly:
            assert torch.equal(first, second), name
        else:
            torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_points_that_are_held_out_are_not_in_them(likelihood):
    model, inputs = problem(400)
    score = slu(model, likelihood).fit(list(inputs.split(60)))
    fresh = 2 * problem(9, seed=3)[1]
    layers = [layer_inputs("mlp", model, points) for points in (inputs[~held(inputs)], fresh)]
    found = score.read_uncalibrated(fresh, 1, False)[1]
    torch.testing.assert_close(found, torch.from_numpy(squared_distances(*layers)), rtol=1e-8, atol=0)
    assert score.state.layers.points == score.diagnostics.points == int((~held(inputs)).sum())
    with_all = squared_distances(layer_inputs("mlp", model, inputs), layers[1])  # control
    assert not torch.allclose(found, torch.from_numpy(with_all), rtol=1e-4)


@pytest.mark.parametrize("cuts", [[200, 200], [1, 399], [150, 100, 150]])
def test_fitted_further_they_are_those_of_one_fit(cuts):
    model, inputs = problem(400)
    first, *rest = inputs.split(cuts)
    method = slu(model, scale=None)
    score = method.fit(first, calibration=False) if len(first) > 5 else slu(model, scale=None, rank=1).fit(first)
    for part in rest:
        score.partial_fit(list(part.split(33)), calibration=False)
    if len(first) > 1:
        assert_same(score.state.layers, method.fit(inputs, calibration=False).state.layers)
    else:  # one point has no covariance: nothing is known of the layers, and nothing is made up
        assert score.state.layers is None


def test_fitted_further_the_readings_follow():
    model, inputs = problem(600)
    score = slu(model).fit(inputs[:300]).partial_fit(inputs[300:])
    whole = slu(model).fit(inputs)
    assert_same(score.state.layers, whole.state.layers)
    assert score.calibration.points == whole.calibration.points
    for reading in FAR:
        torch.testing.assert_close(score(inputs, reading=reading), whole(inputs, reading=reading), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(
            score.calibration.scores[reading], whole.calibration.scores[reading], rtol=1e-8, atol=1e-8
        )


@pytest.mark.parametrize("parts", [2, 5])
def test_merged_they_are_those_of_one_fit(parts):
    model, inputs = problem(500)
    method = slu(model, scale=None)
    merged = SLU.merge([method.fit(part, calibration=False) for part in inputs.tensor_split(parts)])
    assert_same(merged.state.layers, method.fit(inputs, calibration=False).state.layers)
    calibrated = SLU.merge([method.fit(part) for part in inputs.tensor_split(2)])
    whole = method.fit(inputs)
    assert_same(calibrated.state.layers, whole.state.layers)
    for reading in FAR:
        torch.testing.assert_close(
            calibrated(inputs, reading=reading), whole(inputs, reading=reading), rtol=1e-8, atol=1e-8
        )


def test_merged_with_one_that_has_none_there_are_none():
    model, inputs = problem(400)
    method = slu(model, scale=None)
    first, second = (method.fit(part, calibration=False) for part in inputs.split(200))
    second.state = dataclasses.replace(second.state, layers=None)  # as a file of an earlier version has it
    merged = SLU.merge([first, second])
    assert merged.state.layers is None
    merged.calibrate(inputs[:60])
    assert not set(FAR) & set(merged.readings) and "variance" in merged.calibration.standard.scales
    second.partial_fit(inputs[:200], calibration=inputs[:60])
    assert second.state.layers is None and not set(FAR) & set(second.readings)


@pytest.mark.parametrize("fail", [1, 4, 7])
@pytest.mark.parametrize("kind", ["mlp", "wide"])
def test_stopped_and_gone_on_to_the_bit(kind, fail, tmp_path):
    if kind == "mlp":
        model, inputs = problem()
    else:  # folded, and in float32
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model, inputs = nn.Sequential(nn.Linear(90, 70), nn.Tanh(), nn.Linear(70, 3)), torch.randn(240, 90)
    method = SLU(model, "classification", rank=5, scale=None)
    expected = method.fit(Unsized(inputs, 30))
    with pytest.raises(KeyboardInterrupt):
        method.fit(Unsized(inputs, 30, fail), checkpoint=Checkpoint(tmp_path / "run", every=0))
    again = method.fit(Unsized(inputs, 30), checkpoint=tmp_path / "run")
    finished = method.fit(Unsized(inputs, 30), checkpoint=tmp_path / "run")
    for score in (again, finished):
        assert_same(score.state.layers, expected.state.layers, exactly=True)
        for reading in expected.readings:
            assert torch.equal(score(inputs, reading=reading), expected(inputs, reading=reading))


def test_a_checkpoint_of_a_fit_that_keeps_other_layers_is_refused(tmp_path):
    model, inputs = problem()
    budget = 20 * sum(value.numel() for value in model.parameters())
    slu(model, rank=None, sketch=None, budget=budget).fit(inputs, checkpoint=tmp_path / "run")
    method = slu(model, rank=None, sketch=None, budget=budget)
    folding = dataclasses.replace(method.settings.layers, names=(), sizes=())
    method.settings = dataclasses.replace(method.settings, layers=folding)
    with pytest.raises(MismatchError, match="layers"):
        method.fit(inputs, checkpoint=tmp_path / "run")


@pytest.mark.parametrize("kind", ["mlp", "conv", "encoder", "tied"])
def test_saved_and_loaded_they_are_the_same(kind, tmp_path):
    model, inputs = network(kind)
    score = SLU(model, "classification", rank=4).fit(inputs, calibration=0.7 * inputs)
    score.save(tmp_path / "net.slu")
    again = SLU.load(tmp_path / "net.slu", model)
    assert_same(again.state.layers, score.state.layers, exactly=True)
    fresh = 1.5 * inputs
    for reading in score.readings:
        assert torch.equal(again(fresh, reading=reading), score(fresh, reading=reading))
        assert torch.equal(
            again.pvalue(fresh, reading=reading, outputs=1), score.pvalue(fresh, reading=reading, outputs=1)
        )
    first, second = score.explain(fresh), again.explain(fresh)
    assert first.reasons == second.reasons and first.layers == second.layers
    # It goes on from the file as from the fit.
    again.partial_fit(inputs + 1, calibration=0.7 * inputs)
    score.partial_fit(inputs + 1, calibration=0.7 * inputs)
    assert_same(again.state.layers, score.state.layers)


def test_a_copy_has_statistics_of_its_own():
    model, inputs = problem(400)
    score = slu(model).fit(inputs)
    before = {reading: score(inputs, reading=reading) for reading in score.readings}
    copied = copy.deepcopy(score)
    assert all(torch.equal(copied(inputs, reading=reading), before[reading]) for reading in before)
    copied.partial_fit(inputs + 3)
    whole = slu(model, scale=score.scale).fit(torch.cat([inputs, inputs + 3]))
    for reading in FAR:
        assert torch.equal(score(inputs, reading=reading), before[reading])
        torch.testing.assert_close(
            copied(inputs, reading=reading), whole(inputs, reading=reading), rtol=1e-8, atol=1e-8
        )
        assert not torch.allclose(copied(inputs, reading=reading), before[reading], atol=0.1)


def test_statistics_that_do_not_fit_their_header_are_refused(tmp_path):
    model, inputs = problem()
    score = slu(model).fit(inputs)
    state, selection = score.state, score.settings.network.selection
    tensors, plain = state.to_file()
    for change in ({"sizes": [4, 7]}, {"width": 3}, {"names": ["0"]}):
        with pytest.raises(DamagedFileError, match=r"layer|names|sizes"):
            type(state).from_file(tensors, plain | {"layers": plain["layers"] | change}, selection, score.sketch)


@pytest.mark.parametrize("solver", ["lanczos", Lanczos(precondition=2)])
def test_after_lanczos_there_are_none(solver, tmp_path):
    model, inputs = problem()
    method = slu(model, solver=solver)
    assert method.settings.layers.numbers == 0
    score = method.fit(inputs)
    assert score.state.layers is None and not set(FAR) & set(score.readings)
    with pytest.raises(SettingError, match="'distance' needs statistics of layers' inputs"):
        score(inputs, reading="distance")
    score.save(tmp_path / "net.slu")
    _, tensors = read(tmp_path / "net.slu")
    assert not [name for name in tensors if name.startswith("layers")]
    assert SLU.load(tmp_path / "net.slu", model).settings.cost() == score.settings.cost()
    assert SLU(model, "classification", curvature="hessian", rank=4).settings.layers.numbers == 0


def test_without_room_in_the_budget_there_are_none(tmp_path):
    model, inputs = lenet(), torch.randn(220, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    method = SLU(model, "classification", budget=1000, scale=None)
    assert method.settings.layers.names == ()
    score = method.fit(list(inputs.split(50)))
    assert score.state.layers is None and not set(FAR) & set(score.readings) and score.readings[0] == "combined"
    score.save(tmp_path / "net.slu")
    assert SLU.load(tmp_path / "net.slu", model).settings.cost() == score.settings.cost()


@pytest.mark.parametrize("budget", ["3p", "0.4p", 2_500])
def test_what_is_kept_is_what_was_planned(budget, tmp_path):
    """The numbers in the file are those that the cost counts, and within the budget."""
    model, inputs = lenet(), torch.randn(150, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    method = SLU(model, "classification", budget=budget, scale=None)
    score = method.fit(list(inputs.split(50)), calibration=False)
    score.save(tmp_path / "net.slu")
    _, tensors = read(tmp_path / "net.slu")
    kept = {name: tensor.nbytes for name, tensor in tensors.items() if name != "probe"}
    assert set(kept) == {"basis", "layers.mean", "layers.covariance"}
    floats = method.settings.layers.numbers
    assert kept["layers.mean"] + kept["layers.covariance"] == 4 * floats == 4 * score.state.layers.folding.numbers
    rank = score.diagnostics.effective_rank
    assert method.cost().artefact == sum(kept.values()) + 4 * (method.rank - rank) * method.settings.sketch.size
    again = SLU.load(tmp_path / "net.slu", model)
    assert again.settings.cost() == score.settings.cost() and again.settings.layers == score.state.layers.folding
    allowed = budget if isinstance(budget, int) else float(budget[:-1]) * 44_426
    assert sum(kept.values()) <= 4 * allowed and floats <= allowed / 4


def test_costs_count_sums_and_inputs():
    """In the fit two squares of float64 per layer, and the inputs of a batch, which are not there with the scale.

    In a query the statistics as well; it drops the inputs before it forms gradients.
    """
    model = lenet()
    method, plain = (SLU(model, "classification", rank=4, scale=None, solver=name) for name in ("stream", "lanczos"))
    assert plain.settings.layers.numbers == 0
    layers = method.settings.layers
    nothing = dataclasses.replace(method.settings, layers=layers.none())
    for batch in (1, 64):
        with_layers, without = method.cost(batch=batch), nothing.cost(batch=batch)
        inputs = 4 * batch * (1 + 6 + 256 + 120 + 84)
        squares = 8 * 2 * 5 * 64**2
        assert with_layers.artefact - without.artefact == 4 * layers.numbers
        assert with_layers.fitting - without.fitting == squares + inputs
        assert with_layers.querying - without.querying == 4 * layers.numbers + squares
        assert (with_layers.passes, with_layers.trainings) == (without.passes, without.trainings)
    scaled = SLU(model, "classification", rank=4).settings
    apart = [dataclasses.replace(scaled, layers=each).cost() for each in (layers, layers.none())]
    assert 0 <= apart[0].fitting - apart[1].fitting < squares
