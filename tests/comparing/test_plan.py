"""The table of what every method would take."""

from importlib import import_module

import pytest
import torch
from torch import nn

from lenet import LeNet
from slu import SLU, plan
from slu.budgets import shape_for
from slu.comparing.registry import METHODS
from slu.diagnosis.timing import Passes
from slu.errors import BudgetError, SelectionError, SettingError

SOLVERS = {"SLU": {}, "SLU lanczos": {"solver": "lanczos", "scale": None, "ridge": 0.0}}
PLANNED = [name for name, entry in METHODS.items() if entry.cost is not None]

module = import_module("slu.comparing.plan")  # the package's attribute of this name is the function


def test_every_method_is_there():
    planned = plan(LeNet())
    assert [row.method for row in planned] == [*SOLVERS, *PLANNED]
    # Rows and columns, and small tensors; layers of 1, 6 and three folded to 64 inputs.
    layers = sum(w * (w + 3) for w in (1, 6, 64, 64, 64))
    for name, reserved in (("SLU", 4_206 + layers), ("SLU lanczos", 0)):
        shape = shape_for(3 * 44_426 - reserved, 44_426)
        assert (planned[name].rank, planned[name].sketch_size) == (shape.rank, shape.sketch_size)
    assert planned["SCOD"].rank == 3 and planned["DiagonalLaplace"].rank is None
    assert planned.size.outputs == 10


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("budget", ["3p", "1.1p", "2MB", 100_000])
def test_the_plan_is_what_slu_does(budget, name):
    model = LeNet()
    method, row = SLU(model, "classification", budget=budget, **SOLVERS[name]), plan(model, budget)[name]
    assert (row.rank, row.sketch_size, row.cost) == (method.rank, method.settings.sketch.size, method.cost())
    assert row.cost.passes == (1 if name == "SLU" else method.rank)


@pytest.mark.parametrize(("budget", "message"), [("0.02p", "the scale alone takes 4,206"), ("0.1p", "5,007 floats")])
def test_a_budget_without_room_for_the_scale_leaves_the_papers_row(budget, message):
    model = LeNet()
    planned = plan(model, budget)
    assert planned["SLU"].cost is None and message in planned["SLU"].note
    assert message in " ".join(str(planned).split())
    with pytest.raises(BudgetError, match=message):
        SLU(model, "classification", budget=budget)
    method, row = SLU(model, "classification", budget=budget, **SOLVERS["SLU lanczos"]), planned["SLU lanczos"]
    assert (row.rank, row.sketch_size, row.cost) == (method.rank, method.settings.sketch.size, method.cost())
    plain = SLU(model, "classification", budget=budget, scale=None)  # what the message advises
    assert plain.cost().artefact <= float(budget[:-1]) * 4 * 44_426
    assert SLU(model, "classification", budget=5_007).rank == 1


def test_no_rank_beyond_what_the_data_allow():
    """One gradient per point in one pass; ten outputs per point for Lanczos."""
    model, points = LeNet(), 9
    planned = plan(model, "3p", points=points)
    assert (planned["SLU"].rank, planned["SLU lanczos"].rank) == (9, 90)
    inputs = torch.randn(points, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert SLU(model, "classification", rank=9, sketch_size=50).fit(inputs).diagnostics.passes == 1
    with pytest.raises(SettingError, match="above what the data allow"):
        SLU(model, "classification", rank=10, sketch_size=50).fit(inputs)


@pytest.mark.parametrize("budget", ["3p", "0.5p", "10p", "20MB"])
@pytest.mark.parametrize("free", [None, 10**4, 10**9, 10**15])
def test_the_table_fits_a_terminal(monkeypatch, budget, free):
    monkeypatch.setattr(module, "free_bytes", lambda device: free)
    if free == 10**4:
        monkeypatch.setattr(module, "check_budget", lambda *arguments: None)
    text = str(plan(LeNet(), budget))
    assert max(map(len, text.splitlines())) <= 80
    for name in (*SOLVERS, *PLANNED, "44,426 parameters", "10 outputs"):
        assert name in text
    assert "…" not in text
    assert ("more than is free" in text) == (free == 10**4)


def test_what_a_reader_sees():
    text = str(plan(LeNet(), "3p"))
    assert "budget 3p = 3 copies = 533 kB" in text
    assert "3 trainings" in text and "6k + 4" in text
    assert "exact" in str(plan(nn.Linear(9, 3)))
    assert "need a budget of at least 1p" in " ".join(str(plan(LeNet(), "0.5p")).split())


def test_selection_outputs_and_dtype_count():
    model = LeNet().double()
    planned = plan(model, params="head.*", outputs=4)
    assert planned.size.outputs == 4 and planned.size.bytes_each == 8
    assert planned.size.parameters == sum(p.numel() for p in model.head.parameters())
    assert plan(nn.LayerNorm(400)).size.outputs == 10


def test_an_example_tells_outputs_and_what_its_activations_take():
    model, inputs = LeNet(outputs=7), torch.randn(32, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    planned = plan(model, example=inputs)
    # Two convolutions, of 24 and 8 places each way, and three linear layers.
    assert planned.size.activations == 6 * 24**2 + 16 * 8**2 + 120 + 84 + 7
    assert (planned.size.outputs, planned.size.batch) == (7, 32)
    assert "a query is of 32 inputs" in " ".join(str(planned).split())
    assert planned["SLU"].cost == SLU(model, "classification").cost(batch=inputs)
    assert plan(model, example=inputs, outputs=3).size.outputs == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": "3"}, "cannot read"),
        ({"budget": 100}, "smallest that fits is 801 floats"),
        ({"budget": "1000000TB"}, r"of memory are free; at most '\d+MB'"),
        ({"outputs": 0}, "at least 1"),
        ({"outputs": 2.5}, "whole number"),
    ],
)
def test_refusals(monkeypatch, settings, message):
    monkeypatch.setattr(module, "free_bytes", lambda device: 10**10)
    with pytest.raises(BudgetError, match=message):
        plan(LeNet(), **settings)


def test_other_refusals():
    with pytest.raises(SelectionError):
        plan(LeNet(), params="tail.*")
    with pytest.raises(KeyError, match="there are SLU, SLU lanczos, LocalEnsemble"):
        plan(LeNet())["Slu"]


def test_the_model_is_left_alone():
    model = LeNet()
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    plan(model)
    plan(model, example=torch.zeros(2, 1, 28, 28))
    assert model.training and torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_an_example_tells_the_time():
    model, inputs = LeNet(), torch.randn(8, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert not plan(model).timed and plan(model)["SLU"].seconds is None
    planned = plan(model, example=(inputs, torch.arange(8)), points=500)
    assert planned.timed and planned.points == 500
    for row in planned:
        assert row.seconds.measured == (row.method == "SLU")
        assert row.seconds.query > 0
        assert (row.seconds.fit is None) == (row.method == "DeepEnsemble") and row.seconds.fit != 0
    text = str(planned)
    assert max(map(len, text.splitlines())) <= 100 and "…" not in text
    assert "fit of" in text and "500" in text and "~ is an estimate" in text
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    assert "~" not in lines["SLU"] and lines["SCOD"].count("~") == 2 and lines["DeepEnsemble"].count("~") == 1


def test_estimates_are_passes_times_what_one_took(monkeypatch):
    monkeypatch.setattr(module, "measure_passes", lambda network, data: Passes(10, forward=1.0, backward=3.0))
    planned = plan(nn.Linear(99, 10), "3p", example=torch.eye(99)[:10], points=1000)
    seconds = {row.method: (row.seconds.fit, row.seconds.query) for row in planned}
    rank = planned["SLU lanczos"].cost.passes
    assert seconds["SLU lanczos"] == pytest.approx((rank * 100 * 5, 21))
    assert seconds["LocalEnsemble"] == pytest.approx((4 * 100 * 5, 21))  # one step more than the rank
    assert seconds["SCOD"] == pytest.approx((100 * 21, 21))
    assert seconds["SWAG"] == pytest.approx((planned["SWAG"].cost.passes * 100 * 3, 50))
    assert seconds["DeepEnsemble"] == (None, 3)


def test_an_example_goes_through_forward():
    inputs = torch.randn(6, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    forward = lambda model, batch: model(batch["pixels"])  # noqa: E731
    planned = plan(LeNet(), example={"pixels": inputs}, forward=forward)
    assert planned.size.outputs == 10 and planned["SLU"].seconds.measured
    assert planned["SLU"].cost == SLU(LeNet(), "classification", forward=forward).cost(batch={"pixels": inputs})


@pytest.mark.parametrize(
    ("model", "example", "outputs"),
    [
        (nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 3)), torch.arange(24).reshape(4, 6) % 20, 6 * 3),
        (nn.Conv2d(1, 3, 3, padding=1), torch.ones(4, 1, 5, 5), 5 * 5 * 3),
    ],
    ids=["tokens", "pixels"],
)
def test_outputs_at_positions_are_planned_for_slu_alone(model, example, outputs):
    planned = plan(model, example=example)
    assert planned.size.outputs == outputs and planned["SLU"].seconds.measured
    assert planned["SLU"].cost == SLU(model, "classification").cost(batch=example)
    others = [row for row in planned if row.method not in ("SLU", "SLU lanczos")]
    assert others and all(row.cost is None for row in others)
    assert "one vector of outputs per input" in others[-1].note and "LocalEnsemble, " in others[-1].note
    SLU(model, "classification", solver="lanczos", scale=None, rank=2).fit(example)  # as its row says


def test_slu_that_cannot_be_tried_leaves_the_rest():
    inputs = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    planned = plan(nn.Linear(9, 1), example=inputs)
    assert planned["SLU"].seconds is None and "at least two outputs" in planned["SLU"].note
    assert planned["SCOD"].seconds.query > 0
    assert plan(nn.Linear(9, 1), example=inputs, likelihood="regression")["SLU"].seconds.measured


def test_slu_is_not_tried_beyond_the_free_memory(monkeypatch):
    monkeypatch.setattr(module, "free_bytes", lambda device: 10**4)
    monkeypatch.setattr(module, "check_budget", lambda *arguments: None)
    planned = plan(LeNet(), example=torch.zeros(2, 1, 28, 28))
    assert planned["SLU"].seconds is None and planned["SCOD"].seconds is not None


@pytest.mark.parametrize(
    ("model", "example", "groups", "rows"),
    [
        (nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)), torch.arange(12).view(4, 3) % 9, 3, 9),
        (nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)), torch.arange(400).view(4, 100) % 9, 50, 150),
        (nn.Conv2d(2, 5, 3, padding=1), torch.randn(4, 2, 32, 4), 64, 320),
    ],
    ids=["3 tokens", "100 tokens", "pixels"],
)
def test_outputs_at_every_position_are_planned(model, example, groups, rows):
    """SLU is tried on the example, with a gradient for every group of positions; the others do not take it."""
    planned = plan(model, example=example, points=100)
    assert (planned.size.groups, planned.size.all_rows) == (groups, rows)
    slu = planned["SLU"]
    assert slu.seconds.measured and slu.seconds.fit > 0 and slu.seconds.query > 0
    assert planned["SCOD"].cost is None
    assert "for every token or pixel" in str(planned).replace("\n", " ")
