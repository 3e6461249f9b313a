"""SLU within a budget."""

import numpy as np
import pytest
import torch
from torch import nn

from layouts import layout_of
from oracles import network
from shorthand import paper_slu
from slu import SLU, SketchSpec, Stream
from slu.budgets.memory import free_bytes
from slu.core import resolve as core_resolve
from slu.errors import BudgetError, SettingError
from slu.sketches import SKETCHES, build, checked
from stored import lenet

each_solver = pytest.mark.parametrize("solver", ["stream", "lanczos"])

INPUTS = (1, 6, 256, 120, 84)
"""Numbers that the layers of the LeNet are given, averaged over positions."""
LAYERS = sum(min(d, 64) * (min(d, 64) + 3) for d in INPUTS)
"""What the stream keeps of them: twice w + w (w + 1) / 2, of the inputs and of their directions."""


def sizes(model, **settings):
    method = paper_slu(model, "classification", **settings)
    return method.rank, method.settings.sketch.size, method.settings.sketch.kind


SIZES = pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (141, 945, "kronecker")),
        ({"budget": "3p"}, (141, 945, "kronecker")),
        ({"budget": 3 * 44_426}, (141, 945, "kronecker")),
        ({"budget": "3p", "sketch": "hashed"}, (141, 945, "hashed")),
        ({"budget": "3p", "rank": 100}, (100, 1332, "kronecker")),
        ({"budget": "3p", "sketch_size": 2000}, (66, 2000, "kronecker")),
        ({"sketch_size": 2000}, (66, 2000, "kronecker")),
        ({"budget": "3p", "rank": 40, "sketch_size": 2000}, (40, 2000, "kronecker")),
        ({"budget": "3p", "sketch": "identity"}, (3, 44_426, "identity")),
        ({"budget": "3p", "sketch": SketchSpec("shift", 44_426, 3000)}, (44, 3000, "shift")),
        ({"rank": 7}, (7, 1000, "kronecker")),
        ({"rank": 7, "sketch_size": 90}, (7, 90, "kronecker")),
    ],
)


@SIZES
def test_what_is_given_is_kept_and_the_budget_sets_the_rest(settings, expected):
    """By Lanczos, which keeps nothing of the layers."""
    assert sizes(lenet(), solver="lanczos", **settings) == expected


@SIZES
def test_the_stream_takes_the_layers_off_first(settings, expected):
    """It comes to what Lanczos has with so much less; a rank alone has no budget."""
    fewer = {**settings, "budget": 3 * 44_426 - LAYERS} if set(settings) - {"rank"} or not settings else settings
    fewer = settings if "rank" in settings and "budget" not in settings else fewer
    method = paper_slu(lenet(), "classification", **settings)
    assert method.settings.layers.numbers == LAYERS == 12_922 and method.settings.layers.sizes == INPUTS
    found = sizes(lenet(), **settings)
    assert found == sizes(lenet(), solver="lanczos", **fewer)
    assert (found == expected) == ("rank" in settings and (len(settings) == 3 or "budget" not in settings))


def test_small_models_are_exact():
    assert sizes(nn.Linear(9, 5), budget="3p") == (3, 50, "identity")  # 9 inputs take 108 of 150: more than a quarter
    assert sizes(nn.Linear(9, 5)) == (49, 50, "identity")
    assert sizes(nn.Linear(9, 5), budget="10p", solver="lanczos") == (10, 50, "identity")
    assert sizes(nn.Linear(9, 5), budget="10p") == ((500 - 9 * 12) // 50, 50, "identity")


@pytest.mark.parametrize(
    ("layers", "width", "expected"),
    [(1, 300, 64), (17, 300, 64), (18, 300, 32), (66, 300, 32), (67, 300, 16), (300, 20, 8), (500, 20, 8), (900, 9, 0)],
)
def test_without_a_budget_layers_are_folded_to_what_fits_75_000_numbers(layers, width, expected):
    """w (w + 3) per layer; the narrower the more there are, and none where eight numbers of each are too many."""
    model = nn.Sequential(*(nn.Linear(width, 1) for _ in range(layers)))
    chosen = SLU(model, "classification", rank=2).settings.layers
    assert chosen.numbers == layers * expected * (expected + 3) <= 75_000
    assert len(chosen.names) == (layers if expected else 0) and (not expected or chosen.width == expected)
    wider = 2 * expected if expected else 8
    assert expected == 64 or layers * min(width, wider) * (min(width, wider) + 3) > 75_000


def test_widths_fall_by_halves_as_the_budget_does_and_end_at_none():
    """At most a quarter of it."""
    widths = {}
    for budget in (200_000, 4 * 12_922, 4 * 12_922 - 1, 20_000, 8_000, 2_000, 4 * 322, 4 * 322 - 1, 900):
        method = paper_slu(lenet(), "classification", budget=budget)
        layers, kept = method.settings.layers, method.cost().artefact / 4
        assert layers.numbers == sum(min(d, layers.width) * (min(d, layers.width) + 3) for d in layers.sizes)
        assert layers.numbers <= budget / 4 and kept <= budget
        assert kept == layers.numbers + method.rank * method.settings.sketch.size
        widths[budget] = layers.width if layers.names else 0
    assert list(widths.values()) == [64, 64, 32, 32, 16, 8, 8, 0, 0]


def test_layers_give_way_where_the_rest_would_not_fit():
    """What a message names as the smallest does fit, and ranks that were given are kept."""
    for settings in ({"budget": 1000}, {"budget": "3p", "rank": 141}, {"budget": 44_426, "sketch": "identity"}):
        method = paper_slu(lenet(), "classification", **settings)
        assert method.settings.layers.names == () and method.cost().artefact == 4 * method.rank * (
            method.settings.sketch.size
        )
    inside = paper_slu(lenet(), "classification", budget="3p", rank=129)  # control: where they fit they are there
    assert inside.settings.layers.numbers == LAYERS


def test_few_parameters_of_a_large_network_leave_room_for_its_layers():
    """Without a budget: what is kept of the layers comes on top of the least that is kept of the parameters."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(16)), nn.Linear(64, 10))
    method = SLU(model, "classification", params="16.*")
    assert method.settings.layers.numbers == 17 * 64 * 67 > 50_000
    alone = SLU(model, "classification", params="16.*", solver="lanczos")
    assert method.rank == alone.rank > 50 and method.settings.sketch == alone.settings.sketch


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": "3p", "rank": 300}, "rank=141 would fit this budget"),
        ({"budget": "3p", "rank": 200, "sketch_size": 1000}, "rank=133 with this size"),
        ({"budget": "0.5p", "sketch": "identity"}, r"smallest budget is 44,426 floats \('1\.00p'\)"),
        ({"budget": 10}, "smallest that fits is 801 floats"),
        ({"budget": "3 pounds"}, "cannot read the budget '3 pounds'"),
    ],
)
def test_what_does_not_fit_is_refused(settings, message):
    with pytest.raises(BudgetError, match=message):
        paper_slu(lenet(), "classification", **settings)


def needed(**settings):
    cost = SLU(lenet(), "classification", **settings).cost()
    return max(cost.fitting, cost.querying)


@each_solver
@pytest.mark.parametrize(
    ("free", "settings", "message"),
    [
        (10**9, {"budget": "2GB"}, r"2 GB, 1 GB of memory are free; at most '1000MB'"),
        (0.95, {"budget": "4MB"}, r"of memory are free; a budget of '\d+kB' would fit"),
        (6 * 10**5, {"budget": "3p"}, "no budget would fit, or choose fewer parameters"),
    ],
)
def test_beyond_free_memory(monkeypatch, free, settings, message, solver):
    """`free` in bytes, or as a share of what is needed."""
    free = int(free * needed(solver=solver, **settings)) if free < 1 else free
    monkeypatch.setattr(core_resolve, "free_bytes", lambda device: free)
    with pytest.raises(BudgetError, match=message):
        SLU(lenet(), "classification", solver=solver, **settings)


@pytest.mark.parametrize(
    "settings", [{}, {"solver": "lanczos"}, {"solver": Stream(oversampling=50)}, {"sketch_size": 7400}]
)
def test_what_the_refusal_names_does_fit(monkeypatch, settings):
    free = int(0.9 * needed(budget="6MB", **settings))
    monkeypatch.setattr(core_resolve, "free_bytes", lambda device: free)
    with pytest.raises(BudgetError) as refused:
        SLU(lenet(), "classification", budget="6MB", **settings)
    named = str(refused.value).split("a budget of '")[1].split("'")[0]
    cost = SLU(lenet(), "classification", budget=named, **settings).cost()
    assert max(cost.fitting, cost.querying) <= free


def test_unknown_free_memory_and_given_ranks_are_not_checked(monkeypatch):
    monkeypatch.setattr(core_resolve, "free_bytes", lambda device: None)
    SLU(lenet(), "classification", budget="1TB")
    monkeypatch.setattr(core_resolve, "free_bytes", lambda device: 10)
    SLU(lenet(), "classification", rank=4)


def test_free_memory():
    assert free_bytes(torch.device("meta")) is None
    found = free_bytes(torch.device("cpu"))
    assert found is None or found > 10**6


@pytest.fixture
def mlp():
    return network("mlp")


@each_solver
def test_a_rank_from_a_budget_ends_at_what_the_data_allow(mlp, solver):
    """n·t for Lanczos; n gradients in one pass."""
    model, inputs = mlp
    few = inputs[:2]
    method = paper_slu(model, "classification", budget="20p", solver=solver)
    most = 2 * model(few).shape[1] if solver == "lanczos" else 2
    layers = 0 if solver == "lanczos" else 4 * 7 + 6 * 9
    assert method.rank == (20 * 51 - layers) // 51 > most
    score = method.fit(few)
    assert 0 < score.diagnostics.effective_rank <= most and score.diagnostics.passes <= most
    if solver == "lanczos":
        assert score.diagnostics.steps <= most
    with pytest.raises(SettingError, match="above what the data allow"):
        paper_slu(model, "classification", rank=20, solver=solver).fit(few)


def test_one_pass_with_a_rank_beyond_its_gradients_is_that_of_its_gradients(mlp):
    model, inputs = mlp
    wide, asked = (
        paper_slu(model, "classification", sketch="identity", **settings).fit(inputs[:2])
        for settings in ({"budget": "20p"}, {"rank": 2})
    )
    assert wide.diagnostics.effective_rank == asked.diagnostics.effective_rank == 2
    torch.testing.assert_close(wide(inputs), asked(inputs), rtol=1e-7, atol=1e-12)


def test_lanczos_that_ends_early_is_the_same_as_asking_for_less(mlp):
    """v₊ of the last step is there, so the Ritz values and residuals are those of the shorter run."""
    model, inputs = mlp
    few = inputs[:2]
    early = paper_slu(model, "classification", budget="20p", sketch="identity", solver="lanczos").fit(few)
    steps = early.diagnostics.steps
    asked = paper_slu(model, "classification", rank=steps, sketch="identity", solver="lanczos").fit(few)
    np.testing.assert_array_equal(early.diagnostics.residuals, asked.diagnostics.residuals)
    np.testing.assert_array_equal(early.diagnostics.ritz_values, asked.diagnostics.ritz_values)
    assert torch.equal(early(inputs), asked(inputs))


@each_solver
def test_a_score_within_a_budget_is_the_same_as_with_its_sizes(mlp, solver):
    model, inputs = mlp
    score = paper_slu(model, "classification", budget="4p", solver=solver).fit(inputs)
    assert score.settings.rank == 4
    assert torch.equal(score(inputs), paper_slu(model, "classification", rank=4, solver=solver).fit(inputs)(inputs))


@each_solver
def test_cost_counts_outputs_and_batch(solver):
    method = paper_slu(lenet(), "classification", budget="3p", solver=solver)
    assert method.cost() == method.cost(outputs=10, batch=1)
    assert method.cost(outputs=20).querying == method.cost().querying  # one row of an input
    formed = 44_426 - 120 * 256 - 84 * 120  # the two large matrices are left as factors
    assert method.cost(batch=8).querying > method.cost().querying + 7 * 4 * formed
    # Pieces have a bounded size; the inputs of layers are held for the whole batch.
    inputs = 0 if solver == "lanczos" else 4 * sum(INPUTS)
    many, fewer = (method.cost(batch=batch).querying - batch * inputs for batch in (80_000, 8000))
    assert many < 1.1 * fewer
    if solver == "lanczos":  # a batch's gradient is one sum
        assert method.cost(batch=8).fitting == method.cost().fitting
    else:  # one gradient a point, of any number of outputs
        assert method.cost(batch=8).fitting >= method.cost().fitting  # the calibration asks for batches of 64
        # Chunks have a bounded size; the sketches of a batch, s numbers per point, wait for its end.
        waiting = 4 * 8000 * (method.settings.sketch.size + sum(INPUTS))
        assert method.cost(batch=8000).fitting < method.cost(batch=800).fitting + 1.2 * waiting
        assert method.cost(outputs=20).fitting == method.cost().fitting


def test_cost_of_a_batch_counts_gradients_in_its_activations():
    model, points = lenet(), 64
    inputs = torch.zeros(points, 1, 28, 28)
    method = SLU(model, "classification", budget="3p", scale=None)
    loader = [(inputs, torch.zeros(points)), (inputs[:3], None)]
    cost = method.cost(batch=inputs)
    assert cost == method.cost(batch=(inputs, torch.zeros(points))) == method.cost(batch=loader)
    each = 4 * points * (6 * 24**2 + 16 * 8**2 + 120 + 84 + 10)
    plain = method.cost(batch=points)
    assert cost.fitting == pytest.approx(plain.fitting + each, rel=0.1)  # one gradient a point
    assert cost.querying == pytest.approx(plain.querying + each, rel=0.1)
    assert cost.artefact == plain.artefact


def held_bytes(thing) -> int:
    """Of all tensors in an object, but for the table of signs, which does not grow."""
    if isinstance(thing, torch.Tensor):
        return thing.nbytes
    if isinstance(thing, list | tuple):
        return sum(map(held_bytes, thing))
    inside = getattr(thing, "__dict__", {})
    return sum(held_bytes(value) for name, value in inside.items() if name != "table")


@pytest.mark.parametrize("bytes_each", [4, 8])
@pytest.mark.parametrize(("p", "s"), [(1200, 100), (70_001, 300), (50_000, 33_000), (16_384, 1000), (1009, 1009)])
@pytest.mark.parametrize("kind", sorted(SKETCHES))
def test_state_is_known_before_it_is_built(kind, p, s, bytes_each):
    if kind in ("gaussian", "rademacher") and p * s > 10**7:
        p, s = p // 50, s // 50
    options = {"nonzeros": 3} if kind == "hashed" else {}
    spec = checked(SketchSpec(kind, p, p if kind == "identity" else s, options=options, layout=layout_of(p)))
    dtype = {4: torch.float32, 8: torch.float64}[bytes_each]
    assert SKETCHES[kind].state_bytes_of(spec, bytes_each) == held_bytes(build(spec, dtype=dtype))
    assert SKETCHES[kind].scratch_bytes_of(spec, bytes_each) >= 0


@pytest.mark.parametrize("sketch", ["kronecker", SketchSpec("kronecker", 44_426, 1000)])
def test_a_sketch_that_needs_the_shapes_of_tensors_is_given_them(sketch):
    spec = paper_slu(lenet(), "classification", rank=10, sketch=sketch).settings.sketch
    assert spec.layout[:5] == ((6, 25), (1, 6), (16, 150), (1, 16), (120, 256))
    assert paper_slu(lenet(), "classification", rank=10, sketch="hashed").settings.sketch.layout == ()


def test_without_sizes_a_tiny_network_gets_more_than_three_directions():
    """3p of 67 parameters would be three directions; nobody minds 200 kB."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    method = SLU(model, "classification")
    assert method.settings.sketch.kind == "identity"
    assert method.rank > 30
    score = method.fit(torch.randn(40, 4, generator=torch.Generator().manual_seed(0)))
    assert 3 < score.diagnostics.effective_rank <= method.rank
