"""Models made to mislead the gradients layer by layer: rows elsewhere than expected, weights used on the side."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

import misleading
import oracles
from shorthand import jacobian_rows, relative_error
from slu.gradients import Network, PerExampleGradients
from slu.gradients.layers import LayerForward, collector, formulas, patterns
from slu.gradients.layers.verification import Layout, example_scales, find_layout
from slu.parameters import select

EXACT = 1e-10


def gradients_of(model: nn.Module, **settings: int) -> PerExampleGradients:
    return PerExampleGradients(Network(model, select(model)), **settings)


def forward(gradients: PerExampleGradients, inputs: Tensor) -> LayerForward | None:
    with gradients._network.evaluating():
        return gradients._collector.forward(inputs)


def general_names(gradients: PerExampleGradients, inputs: Tensor) -> set[str]:
    layers = forward(gradients, inputs)
    return set(gradients._network.selection.names) if layers is None else set(layers.general)


def error(gradients: PerExampleGradients, inputs: Tensor) -> float:
    model = gradients._network.model
    with gradients._network.evaluating():
        actual = jacobian_rows(gradients, inputs, len(inputs))
    return relative_error(actual, oracles.jacobian(model, inputs))


def in_order(plain: Tensor, _: Tensor, scales: Tensor) -> Layout:
    """What somebody would take for granted: examples come first."""
    return Layout(1, len(scales), len(plain) // len(scales))


@pytest.mark.parametrize("name", misleading.MISLEADING)
def test_rows_are_right_whatever_the_batch_size(name):
    """Six tokens: as many examples, fewer, twice as many, one more than divides them, and the first again."""
    gradients = gradients_of(misleading.make(name))
    for place, points in enumerate((6, 4, 12, 1, 5, 3, 6)):
        assert error(gradients, misleading.sequences(points, seed=place)) < EXACT


@pytest.mark.parametrize("points", [6, 4])
@pytest.mark.parametrize("name", sorted(set(misleading.MISLEADING) - misleading.UNRULY))
def test_only_what_must_goes_the_general_way(name, points):
    gradients = gradients_of(misleading.make(name))
    assert general_names(gradients, misleading.sequences(points)) == misleading.GENERAL.get(name, set())


def test_tied_weights_used_as_layers_as_arguments_and_as_factors():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = misleading.Tied().double()
    words = torch.randint(7, (5, 6), generator=torch.Generator().manual_seed(0))
    gradients = gradients_of(model)
    assert error(gradients, words) < EXACT
    assert general_names(gradients, words) == set()


@pytest.mark.parametrize("name", sorted(set(misleading.MISLEADING) - misleading.UNRULY - set(misleading.GENERAL)))
def test_control_samples_taken_for_granted_would_be_wrong_or_the_same(name, monkeypatch):
    """With every row given to examples in order, and nobody checking, sequences first come out wrong."""
    monkeypatch.setattr(patterns, "find_layout", in_order)
    monkeypatch.setattr(collector, "verify", lambda *given, **_: dict.fromkeys(given[3], True))
    actual = error(gradients_of(misleading.make(name)), misleading.sequences(6))
    assert (actual > 0.01) == (name in ("sequence first", "windows before examples", "gated", "places"))


@pytest.mark.parametrize("name", ["sequence first", "windows before examples", "places"])
def test_the_check_alone_finds_rows_given_to_the_wrong_samples(name, monkeypatch, caplog):
    monkeypatch.setattr(patterns, "find_layout", in_order)
    gradients = gradients_of(misleading.make(name))
    with caplog.at_level(logging.INFO):
        assert error(gradients, misleading.sequences(6)) < EXACT
    assert "the general fallback" in caplog.text
    assert general_names(gradients, misleading.sequences(6))


def test_the_check_finds_a_wrong_formula(monkeypatch):
    real = patterns.RULES["AddmmBackward0"]

    class Wrong:
        def __init__(self, known):
            self.rows = known.rows
            self.gradient = lambda cotangents, take: torch.stack([each.sum(1) * 1.001 for each in cotangents], 1)

    monkeypatch.setitem(
        patterns.RULES, "AddmmBackward0", lambda use: Wrong(real(use)) if use.operand == 0 else real(use)
    )
    gradients = gradients_of(misleading.make("batch first"))
    assert general_names(gradients, misleading.sequences(6)) == {"into.bias", "out.bias"}
    assert error(gradients, misleading.sequences(6)) < EXACT


@pytest.mark.parametrize("numbers", [5, 10**6])
@pytest.mark.parametrize("wrong", [1.0, 1.001])
def test_matrices_are_checked_in_parts_where_they_are_large(monkeypatch, numbers, wrong):
    """By rows of a few numbers, or whole; right formulas pass, and wrong ones do not."""
    real, parts = patterns.RULES["AddmmBackward0"], []

    class Noted(formulas.Matrix):
        def part(self, rows):
            parts.append(rows)
            return super().part(rows)

    def rule(use):
        formula = real(use)
        if not isinstance(formula, formulas.Matrix):
            return formula
        return Noted(formula.inputs, formula.scale * wrong, formula.transposed)

    monkeypatch.setitem(patterns.RULES, "AddmmBackward0", rule)
    gradients = gradients_of(misleading.make("batch first"), max_numbers=numbers)
    expected = set() if wrong == 1.0 else {"into.weight", "out.weight"}
    assert general_names(gradients, misleading.sequences(6)) == expected
    assert bool(parts) == (numbers == 5)


def test_a_formula_that_fails_leaves_all_to_the_general_way(monkeypatch, caplog):
    def fails(use):
        raise AttributeError("no such thing saved")

    monkeypatch.setitem(patterns.RULES, "NativeLayerNormBackward0", fails)
    gradients = gradients_of(misleading.make("batch first"))
    with caplog.at_level(logging.INFO):
        assert forward(gradients, misleading.sequences(6)) is None
    assert "no such thing saved" in caplog.text
    assert error(gradients, misleading.sequences(6)) < EXACT


def in_natural_order(points: int) -> Tensor:
    """Inputs by whose first numbers every token stands behind those of earlier examples already."""
    inputs = misleading.sequences(points)
    inputs[..., 0] = 1 + torch.arange(6.0 * points).view(points, 6)
    return inputs


@pytest.mark.parametrize("name", ["shuffled", "ragged", "picked"])
def test_rows_that_happen_to_stand_in_order_are_looked_at_again(name):
    gradients = gradients_of(misleading.make(name))
    inputs = in_natural_order(4)
    assert error(gradients, inputs) < EXACT
    assert general_names(gradients, inputs) == set()
    inputs[:, 0, 0] *= torch.tensor([1.0, -2.0, 3.0, -4.0])
    assert error(gradients, inputs) < EXACT
    assert {"middle.weight", "middle.bias"} <= general_names(gradients, inputs)
    assert error(gradients, in_natural_order(4)) < EXACT


@pytest.mark.parametrize("name", ["windows after examples", "batch first", "places"])
def test_a_table_of_biases_moves_no_rows(name, plans):
    gradients = gradients_of(misleading.make(name))
    for seed in range(3):
        error(gradients, misleading.sequences(4, seed=seed))
    assert plans == [4]


def test_a_step_that_cannot_be_pulled_back_costs_its_own_parameter_alone():
    model = misleading.make("places")
    model.places.sparse = True
    gradients = gradients_of(model)
    assert general_names(gradients, misleading.sequences(4)) == {"places.weight"}
    with gradients._network.evaluating():
        actual = jacobian_rows(gradients, misleading.sequences(4), 4)
    model.places.sparse = False
    assert relative_error(actual, oracles.jacobian(model, misleading.sequences(4))) < EXACT


@pytest.fixture
def plans(monkeypatch) -> list[int]:
    """How many examples each plan was made for."""
    made: list[int] = []
    real = collector.make_plan
    monkeypatch.setattr(collector, "make_plan", lambda recording: (made.append(recording.examples), real(recording))[1])
    return made


@pytest.mark.parametrize(
    ("sizes", "made"),
    [((6, 4, 6, 5, 4), [6]), ((2, 3, 20, 3), [2, 3, 20]), ((17, 40, 3), [17]), ((1, 4, 1), [1, 4])],
)
def test_a_plan_serves_smaller_batches_and_of_many_examples_larger_ones(plans, sizes, made):
    gradients = gradients_of(misleading.make("sequence first"))
    for points in sizes:
        assert error(gradients, misleading.sequences(points, seed=points)) < EXACT
    assert plans == made


def test_a_silent_layer_is_looked_at_again_until_it_speaks(plans):
    """Nothing can be seen of a layer that all examples of a batch switch off."""
    gradients = gradients_of(misleading.make("gated"))
    silent, alive = misleading.sequences(6), misleading.sequences(6, seed=1)
    silent[:, 0, 0] = -1
    alive[:, 0, 0] = 1
    for inputs in (silent, silent, alive, alive, silent):
        assert error(gradients, inputs) < EXACT
    assert plans == [6, 6, 6]


class Beside(nn.Module):
    """A layer beside another that only some points switch on; its width tells its gradients from others."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side, self.out = nn.Linear(4, 4), nn.Linear(4, 5), nn.Linear(9, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        gate = (inputs[:, :1] > 0).to(inputs)
        return self.out(torch.cat([self.main(inputs).tanh(), gate * self.side(inputs).tanh()], 1))

    @classmethod
    def gradients(cls) -> PerExampleGradients:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return gradients_of(cls().double())


def switched(on: list[int]) -> Tensor:
    inputs = misleading.sequences(64)[:, 0].clone()
    inputs[:, 0] = -inputs[:, 0].abs()
    inputs[on, 0] = 1
    return inputs


@pytest.fixture
def wrong_beside(monkeypatch) -> None:
    """The formula of a weight with five rows is wrong by a factor 2."""
    real = formulas.Matrix.gradient

    def wrong(self, cotangents, take):
        factor = 2 if cotangents[0].shape[-1] == 5 else 1
        return real(self, [factor * each for each in cotangents], take)

    monkeypatch.setattr(formulas.Matrix, "gradient", wrong)


@pytest.mark.usefixtures("wrong_beside")
@pytest.mark.parametrize("row", [0, 30, 63])
def test_a_wrong_formula_is_not_used_for_a_batch_that_was_not_looked_at_where_it_speaks(row, monkeypatch):
    """At most sixteen examples of a batch are looked at; the rows are among them (30) or not."""
    gradients = Beside.gradients()
    for _ in range(2):
        assert error(gradients, switched([row])) < EXACT
    assert "side.weight" in general_names(gradients, switched([row]))
    monkeypatch.setattr(collector, "verify", lambda *given, **_: dict.fromkeys(given[3], True))
    assert error(Beside.gradients(), switched([row])) > 0.01  # the control: nobody looks


def test_a_formula_nobody_could_look_at_is_used_once_somebody_can(plans):
    gradients = Beside.gradients()
    for on, general in (([0], {"side.weight", "side.bias"}), ([], set()), ([*range(64)], set()), ([0], set())):
        assert error(gradients, switched(on)) < EXACT
        assert general_names(gradients, switched(on)) == general
    assert plans == [64] * 5  # two for each of the first two batches; the third's is kept


def test_plans_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(collector, "_PLANS", 3)
    gradients = gradients_of(misleading.make("batch first"))
    for points in range(1, 9):
        error(gradients, misleading.sequences(points))
    assert len(gradients._collector._plans) == 3
    assert len(gradients._collector._verified) == 3


def scaled_rows(box: tuple[int, int, int], dtype=torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    outer, points, inner = box
    plain = torch.randn(outer, points, inner, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scales = example_scales(points)
    scaled = plain * scales[:, None, None]
    return plain.to(dtype).flatten(0, 2), scaled.to(dtype).flatten(0, 2), scales


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("box", [(1, 5, 7), (7, 5, 1), (2, 5, 3), (1, 40, 1), (40, 40, 1), (1, 1, 4), (3, 16, 16)])
def test_layouts_are_found(box, dtype):
    actual = find_layout(*scaled_rows(box, dtype))
    expected = Layout(*box) if box[1] > 1 else Layout(1, 1, box[0] * box[2])
    assert actual == expected


def test_a_layout_says_where_each_row_is():
    rows = torch.arange(2 * 3 * 2)
    actual = Layout(2, 3, 2).take(rows, slice(1, 3))
    assert torch.equal(actual, torch.tensor([[2, 3, 8, 9], [4, 5, 10, 11]]))
    assert torch.equal(Layout(1, 3, 4).take(rows, slice(1, 2)), torch.tensor([[4, 5, 6, 7]]))


def test_rows_that_mix_samples_have_no_layout():
    plain, scaled, scales = scaled_rows((1, 5, 7))
    mixed = plain.clone(), scaled.clone()
    for each in mixed:
        each[3] += 1e-6 * each[20]
    assert find_layout(*mixed, scales) is None
    swapped = scaled.clone()
    swapped[[3, 20]] = swapped[[20, 3]]
    assert find_layout(plain, swapped, scales) is None
    assert find_layout(plain[:-1], scaled[:-1], scales) is None


def test_zero_rows_leave_a_doubt_only_where_boxes_agree_on_the_rest():
    plain, scaled, scales = scaled_rows((1, 5, 6))
    kept = torch.zeros(30, 1, dtype=torch.float64)
    kept[::6] = 1  # the first row of each example; (r // 1) mod 5 says the same of them
    actual = find_layout(plain * kept, scaled * kept, scales)
    assert actual == Layout(1, 5, 6, unique=False)
    kept[1] = 1
    assert find_layout(plain * kept, scaled * kept, scales) == Layout(1, 5, 6)
    assert find_layout(plain * 0, scaled * 0, scales) == Layout(1, 5, 6, unique=False)


def test_scales_tell_sixty_four_samples_apart_and_are_powers_of_two():
    assert len(set(example_scales(64).tolist())) == 64
    assert bool((example_scales(100).log2() == example_scales(100).log2().round()).all())
    assert torch.equal(example_scales(100)[:16], example_scales(16))
