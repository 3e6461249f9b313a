"""SCOD's settings, its plan, what it refuses, and the model that it leaves alone."""

import numpy as np
import pytest
import torch
from torch import nn

from oracles import ggn, network
from slu.baselines import scod
from slu.baselines.scod import SCOD
from slu.budgets import size_of
from slu.core.protocols import Method, Score
from slu.errors import BudgetError, DataError, NumericalError, OutOfMemoryError, SettingError
from slu.sketches import build
from untouched import assert_same, snapshot


def test_rank_and_rows_from_a_budget():
    model = network("conv")[0]
    assert SCOD(model, "classification").rank == 3
    method = SCOD(model, "classification", budget="4p")
    assert (method.rank, method.sketch_rows) == (4, 28)
    assert SCOD(model, "classification", budget="4p", rank=2).rank == 2


def test_a_rank_above_what_the_data_allow():
    model, inputs = network("encoder")
    few = inputs[:2]
    with pytest.raises(
        SettingError, match=r"rank 7 is above what the data allow: 2 points of 3 outputs .* rank 6 at most"
    ):
        SCOD(model, "classification", rank=7).fit(few)
    with pytest.raises(SettingError, match="rank 2 at most"):
        SCOD(model, "classification", rank=3, curvature="fisher").fit(few)
    # A budget that holds more ends where the data end: two points of three classes have a curvature of rank 4.
    score = SCOD(model, "classification", budget="7p").fit(few)
    assert len(score.eigenvalues) == len(score.basis) == 4
    matrix = ggn(model, few, "classification")
    np.testing.assert_allclose(score.eigenvalues, torch.linalg.eigvalsh(matrix).flip(0)[:4], rtol=1e-9)


def test_it_is_a_method_and_its_cost():
    model, inputs = network("conv")
    method = SCOD(model, "classification", rank=3)
    assert isinstance(method, Method)
    assert isinstance(method.fit(inputs, progress=False), Score)
    p = 183 * 8
    state = sum(build(spec).state_bytes for spec in method._tests())
    planned = scod.scod_cost(3, size_of(method.network.selection, 3))
    cost = method.cost()
    assert (cost.artefact, cost.querying, cost.passes) == (planned.artefact, planned.querying, 1)
    assert cost.fitting == planned.fitting + state
    # The 22 vectors, and the gradients of one input, whole.
    assert cost.fitting - state - method.cost(outputs=3).querying + cost.artefact == (22 + 3) * p
    wider = SCOD(model, "classification", rank=3, sketch_rows=40)
    more = sum(build(spec).state_bytes for spec in wider._tests())
    assert wider.cost().fitting == cost.fitting - state + 18 * p + more
    exact = SCOD(model, "classification", rank=3, sketch_rows=10_000)
    assert exact.cost().fitting == cost.fitting - state + (2 * 183 - 22) * p


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"rank": 0}, SettingError, "the rank must be at least 1, got 0"),
        ({"rank": 52}, SettingError, "rank 52 is above the number of selected parameters, 51"),
        (
            {"sketch_rows": 9},
            SettingError,
            r"at least 2·rank \+ 6, 10 for rank 2, got 9; left out it is 6·rank \+ 4, 16",
        ),
        ({"sketch_rows": 20.5}, SettingError, "sketch_rows must be a whole number"),
        ({"prior_precision": 0}, SettingError, "prior_precision must be a finite number above 0, got 0; or 'paper'"),
        ({"factor": "root"}, SettingError, "unknown factor 'root'; valid are 'exact', 'hessian'"),
        ({"factor": "hessian", "curvature": "fisher"}, SettingError, "Leave one of the two out"),
        ({"curvature": "hessian"}, SettingError, "no sum of squares that could be sketched; use curvature='ggn'"),
        ({"curvature": "kfac"}, SettingError, "unknown curvature 'kfac'"),
        ({"seed": None}, SettingError, "the seed must be a whole number"),
        ({"budget": "1p"}, BudgetError, "holds rank 1 of SCOD, not 2"),
        ({"rank": None, "budget": "0.5p"}, BudgetError, "SCOD keeps at least one: give '1p' or more"),
    ],
)
def test_settings_that_cannot_work(settings, error, message):
    with pytest.raises(error, match=message):
        SCOD(network("mlp")[0], "classification", **{"rank": 2, **settings})


class Idle(nn.Module):
    """A parameter that nothing depends on."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3).double()
        self.idle = nn.Parameter(torch.ones(50, dtype=torch.float64))

    def forward(self, inputs):
        return self.layer(inputs)


def test_fits_that_cannot_work(monkeypatch):
    _, inputs = network("mlp")
    with pytest.raises(DataError, match="gave no batch"):
        SCOD(network("mlp")[0], "classification", rank=2).fit([])
    with pytest.raises(NumericalError, match="the outputs do not depend on the selected parameters"):
        SCOD(Idle(), "classification", rank=2, params="idle").fit(inputs)
    with pytest.raises(NumericalError, match=r"overflow float32.*model\.double\(\)"):
        SCOD(nn.Linear(2, 3), "regression", rank=1).fit(torch.tensor([[1e20, 1.0]]))

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(scod, "SinglePass", full)
    with pytest.raises(OutOfMemoryError, match="out of memory while fitting SCOD"):
        SCOD(network("mlp")[0], "classification", rank=2).fit(inputs)


@pytest.mark.parametrize("kind", ["conv", "encoder"])
def test_the_model_is_left_alone(kind, monkeypatch):
    model, inputs = network(kind)
    before = snapshot(model)
    method = SCOD(model, "classification", rank=3)
    method.fit(inputs)(inputs, reading="relative")
    assert_same(before, snapshot(model))
    with pytest.raises(DataError):
        method.fit([inputs, inputs * float("nan")])
    assert_same(before, snapshot(model))

    def failing(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(scod.SinglePass, "add", failing)
    with pytest.raises(KeyboardInterrupt):
        method.fit(inputs)
    assert_same(before, snapshot(model))
