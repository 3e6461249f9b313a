"""What SWAG refuses, in words that say what to do; and the user's model, untouched whatever happens."""

import math

import pytest
import torch
from torch import nn

from descents import problem
from oracles import targets_for
from shorthand import split
from slu.baselines.predictions import READINGS
from slu.baselines.swag.moments import DEVIATIONS
from slu.baselines.swag.swag import SWAG
from slu.errors import DataError, ModelError, NumericalError, SettingError, unknown
from untouched import assert_same, snapshot


class Failing:
    """Fine in the first epoch; fails in the middle of the second."""

    def __init__(self, data, how):
        self.data, self.how, self.passes = data, how, 0

    def __iter__(self):
        self.passes += 1
        yield self.data[0]
        if self.passes == 2:
            yield self.how(*self.data[1])
        else:
            yield from self.data[1:]


def _disk(*_):
    raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("kind", "likelihood", "how", "error"),
    [
        ("conv", "classification", _disk, DataError),
        ("encoder", "classification", _disk, DataError),
        ("encoder", "classification", lambda inputs, targets: (inputs * float("nan"), targets), DataError),
        ("encoder", "classification", lambda inputs, targets: inputs, DataError),
        ("conv", "regression", lambda inputs, targets: (inputs, 1e200 * targets), NumericalError),
    ],
    ids=["loader", "loader-encoder", "NaN", "no targets", "overflow"],
)
def test_the_model_is_untouched_also_after_an_exception(kind, likelihood, how, error):
    model, inputs, data = problem(kind, likelihood)
    list(model.modules())[-1].eval()
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    before = snapshot(model)
    method = SWAG(model, likelihood, rank=2, samples=3, collections=3)
    with pytest.raises(error):
        method.fit(Failing(data, how))
    assert_same(before, snapshot(model))
    score = method.fit(data)
    score(inputs)
    score.sample(0)
    assert_same(before, snapshot(model))
    with torch.no_grad():
        assert torch.equal(method.fit(data)(inputs), score(inputs))


def test_a_learning_rate_that_is_too_high_is_named():
    model, _, data = problem("mlp", "regression")
    with pytest.raises(NumericalError, match=r"lower the learning rate \(1000, momentum 0.9\)") as caught:
        SWAG(model, "regression", rank=2, learning_rate=1000.0, collections=200).fit(data)
    partial = caught.value.partial
    assert isinstance(partial, list) and all(map(math.isfinite, partial))


def test_weights_that_do_not_move():
    model, _, data = problem("mlp")
    with pytest.raises(NumericalError, match="no weight moved between the 10 collected iterates"):
        SWAG(model, "classification", rank=2, schedule=lambda step: 0.0).fit(data)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "at least 1, got 0"),
        ({"rank": 60}, "above the number of selected parameters, 51"),
        ({"samples": 10**400}, "samples must be at most 1000000, got 1000"),
        ({"weight_decay": 10**400}, "weight_decay must be a number of at least 0"),
        ({"samples": 1}, "samples must be at least 2, got 1"),
        ({"learning_rate": 0.0}, "learning_rate must be a finite number above 0"),
        ({"learning_rate": float("inf")}, "learning_rate must be a finite number above 0"),
        ({"momentum": 1.0}, "momentum must be a number of at least 0 and below 1, got 1.0"),
        ({"weight_decay": -0.1}, "weight_decay must be a number of at least 0"),
        ({"collect_every": 0}, "collect_every must be at least 1"),
        ({"collect_every": 1.5}, "collect_every must be a whole number"),
        ({"rank": 4, "collections": 3}, "3 collections cannot give 4 deviations; raise collections="),
        ({"rank": 1, "collections": 1}, "collections must be at least 2"),
        ({"batchnorm_batches": 0}, "batchnorm_batches must be at least 1"),
        ({"schedule": "linear"}, "unknown schedule 'linear'; valid are 'constant', 'cosine', 'a function"),
        ({"schedule": 3}, "unknown schedule 3"),
        ({"deviations": "last"}, str(unknown("deviations", "last", DEVIATIONS))),
    ],
    ids=str,
)
def test_settings_that_cannot_work(settings, message):
    model, _, _ = problem("mlp")
    with pytest.raises(SettingError, match=message):
        SWAG(model, "classification", **settings)


@pytest.mark.parametrize("came", [-1.0, float("nan"), "half"])
def test_schedules_that_cannot_work(came):
    model, _, data = problem("mlp")
    with pytest.raises(SettingError, match="finite factor of at least 0, at step 0 came"):
        SWAG(model, "classification", rank=2, schedule=lambda step: came).fit(data)


def test_data_that_cannot_work():
    model, inputs, _ = problem("conv")
    method = SWAG(model, "classification", rank=2)
    with pytest.raises(DataError, match=r"needs targets, but batch 0 has inputs alone; use a loader of \(inputs"):
        method.fit(inputs)
    with pytest.raises(DataError, match="gave no batch"):
        method.fit([])
    with pytest.raises(DataError, match="one class index per point"):
        method.fit([(inputs, inputs)])
    model, inputs, _ = problem("noisy")
    single = split(inputs, targets_for("classification"), sizes=[11, 1])
    with pytest.raises(DataError, match=r"batch of one point .*; use larger batches, and drop_last=True"):
        SWAG(model, "classification", rank=2).fit(single)


def test_models_that_cannot_work():
    model, _, data = problem("mlp")
    with pytest.raises(ModelError, match="forward= must call the model that it is given"):
        SWAG(model, "classification", rank=2, forward=lambda _, inputs: model(inputs)).fit(data)
    assert all(value.grad is None for value in model.parameters())
    with pytest.raises(ModelError, match=r"outputs have no history.*and from forward="):
        SWAG(model, "classification", rank=2, forward=lambda given, inputs: given(inputs).detach()).fit(data)

    class Uncopied(nn.Linear):
        def __deepcopy__(self, memo):
            raise RuntimeError("not me")

    with pytest.raises(ModelError, match=r"copy.deepcopy cannot make one: RuntimeError: not me"):
        SWAG(Uncopied(4, 3).double(), "classification", rank=2).fit(data)


def test_readings():
    model, inputs, data = problem("mlp")
    score = SWAG(model, "classification", rank=2, samples=3).fit(data)
    assert score.readings == tuple(READINGS)
    total, disagreement = (score(inputs, reading=name) for name in ("entropy", "mutual-information"))
    assert bool((total > disagreement).all()) and bool((disagreement > 0).all())
    with pytest.raises(SettingError, match="unknown reading 'varience'; valid are 'variance', 'mutual-information'"):
        score(inputs, reading="varience")
    with pytest.raises(SettingError, match="per_output=True is for the reading 'variance'"):
        score(inputs, reading="entropy", per_output=True)
    model, inputs, data = problem("mlp", "regression")
    score = SWAG(model, "regression", rank=2, samples=3).fit(data)
    assert score.readings == ("variance",)
    with pytest.raises(SettingError, match="'entropy' needs predicted probabilities, which the likelihood Regression"):
        score(inputs, reading="entropy")
