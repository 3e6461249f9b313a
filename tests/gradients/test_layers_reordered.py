"""Rows that data move, layers that are silent at first, gradients that cancel: plans must not outlive what they saw."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import oracles
from shorthand import jacobian_rows, relative_error
from slu.gradients import GeneralGradients, Network, PerExampleGradients
from slu.gradients.layers import collector, graph, patterns
from slu.parameters import select

EXACT = 1e-10


def gradients_of(model: nn.Module) -> PerExampleGradients:
    return PerExampleGradients(Network(model, select(model)))


def general_names(gradients: PerExampleGradients, inputs: Tensor) -> set[str]:
    with gradients._network.evaluating():
        layers = gradients._collector.forward(inputs)
    return set(gradients._network.selection.names) if layers is None else set(layers.general)


def error(gradients: PerExampleGradients | GeneralGradients, inputs: Tensor) -> float:
    model = gradients._network.model
    with gradients._network.evaluating():
        actual = jacobian_rows(gradients, inputs, len(inputs))
    return relative_error(actual, oracles.jacobian(model, inputs))


def points(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Moved(nn.Module):
    """A layer that sees examples in the order of their first numbers; they are put back behind it."""

    def __init__(self, move) -> None:
        super().__init__()
        self.into, self.middle, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.move = move

    def forward(self, inputs: Tensor) -> Tensor:
        order = inputs[:, 0].argsort()
        hidden = self.middle(self.move(self.into(inputs).tanh(), order)).tanh()
        return self.out(self.move(hidden, order.argsort()))


def matrix(order: Tensor) -> Tensor:
    return torch.eye(len(order), dtype=torch.float64)[order]


def written(rows: Tensor, order: Tensor) -> Tensor:
    actual = torch.zeros_like(rows)
    for place, each in enumerate(order.argsort().tolist()):
        actual[each] = rows[place]
    return actual


def scattered(rows: Tensor, order: Tensor) -> Tensor:
    actual = torch.zeros_like(rows)
    for place, each in enumerate(order.argsort().tolist()):
        one = rows.split(1)[place]
        actual = actual.select_scatter(one[0], 0, each) if place else actual.slice_scatter(one, 0, each, each + 1)
    return actual


MOVES = {
    "product": lambda rows, order: matrix(order) @ rows,
    "added product": lambda rows, order: torch.addmm(torch.zeros(4, dtype=torch.float64), matrix(order), rows),
    "einsum": lambda rows, order: torch.einsum("ij,jd->id", matrix(order), rows),
    "einsum, rows first": lambda rows, order: torch.einsum("jd,ij->id", rows, matrix(order)),
    "masked sum": lambda rows, order: (matrix(order)[:, :, None] * rows).sum(1),
    "table": lambda rows, order: F.embedding(order, rows),
    "written into a view": written,
    "scattered": scattered,
    "strides": lambda rows, order: torch.cat([rows.as_strided((1, 4), (4, 1), 4 * each) for each in order.tolist()]),
    "rolled": lambda rows, order: rows.roll(int(order[0]), 0),
}


def moved(name: str) -> Moved:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Moved(MOVES[name]).double()


def two_orders() -> tuple[Tensor, Tensor]:
    """Two examples as they are sorted, and the other way round: an even chance in any loader."""
    inputs = points(2)
    inputs[:, 0] = torch.tensor([-1.0, 1.0])
    return inputs, inputs.flip(0)


@pytest.mark.parametrize("name", MOVES)
def test_rows_in_order_by_chance_are_not_taken_for_a_rule(name):
    in_order, turned = two_orders()
    gradients = gradients_of(moved(name))
    assert general_names(gradients, in_order) == set()
    for inputs in (in_order, turned, in_order, turned):
        assert error(gradients, inputs) < EXACT


@pytest.mark.parametrize("name", MOVES)
def test_control_plans_that_know_nothing_of_moves_would_be_wrong(name, monkeypatch):
    monkeypatch.setattr(graph, "_INDEXING", ("Nothing",))
    monkeypatch.setattr(graph, "_OFFSETS", {})
    monkeypatch.setattr(graph, "_FACTORS", {})
    in_order, turned = two_orders()
    gradients = gradients_of(moved(name))
    assert error(gradients, in_order) < EXACT
    assert error(gradients, turned) > 0.01


@pytest.mark.parametrize("pair", [(0, 16), (1, 45), (3, 62)])
def test_two_samples_out_of_order_among_many_are_seen(pair):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Moved(lambda rows, order: rows[order]).double()
    inputs = points(64)
    inputs[:, 0] = torch.arange(64.0) / 64
    swapped = inputs.clone()
    swapped[list(pair), 0] = inputs[list(reversed(pair)), 0]
    gradients = gradients_of(model)
    assert general_names(gradients, inputs) == set()
    assert general_names(gradients, swapped) == {"middle.weight", "middle.bias"}
    assert error(gradients, swapped) < EXACT


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.GRU(4, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.inside(inputs[:, None].expand(-1, 3, -1))[0][:, -1])


class Gained(nn.Module):
    """Weights scaled at run time, data multiplied with parameters, a matrix that is no parameter from the right."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.weight = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4, 4))
        self.register_buffer("fixed", torch.randn(4, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs * self.gain.exp(), self.weight.tanh()).tanh() @ self.fixed


USUAL = {
    "without biases": lambda: nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 3, bias=False)),
    "frozen in the middle": lambda: nn.Sequential(
        nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4, bias=False).requires_grad_(False), nn.Tanh(), nn.Linear(4, 3)
    ),
    "recurrent": Recurrent,
    "gained": Gained,
}


@pytest.mark.parametrize("name", USUAL)
def test_usual_products_are_not_suspected(name, monkeypatch):
    made: list[int] = []
    real = collector.make_plan
    monkeypatch.setattr(collector, "make_plan", lambda recording: (made.append(recording.examples), real(recording))[1])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        gradients = gradients_of(USUAL[name]().double())
    names = list(gradients._network.selection.names)
    for seed in range(3):
        with gradients._network.evaluating():
            actual = jacobian_rows(gradients, points(4, seed), 4)
        expected = oracles.jacobian(gradients._network.model, points(4, seed), names)
        assert relative_error(actual, expected) < EXACT
    assert made == [4]


class Silent(nn.Module):
    """A layer whose rows stand the other way round, or belong to no example; inputs below zero switch it off."""

    def __init__(self, hyper: bool) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(4, 5), nn.Linear(5, 3)
        self.middle = nn.Linear(2 if hyper else 5, 5)
        self.codes = nn.Parameter(torch.randn(5, 2)) if hyper else None

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.into(inputs).tanh()
        actual = self.middle(hidden.flip(0)).flip(0) if self.codes is None else hidden @ self.middle(self.codes).T
        return self.out(hidden + actual.tanh() * (inputs[:, :1] > 0))


@pytest.mark.parametrize("alive", [0, 1, 5])
@pytest.mark.parametrize("hyper", [False, True])
def test_a_layer_that_was_silent_at_first_has_no_layout_yet(hyper, alive):
    """As many rows as examples leave one layout only, and nothing that speaks against it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Silent(hyper).double()
    first, then = points(5), points(5, seed=1)
    first[:, 0], then[:, 0] = -1, 1
    first[2 : 2 + alive, 0] = 1  # the third of five is its own mirror image
    gradients = gradients_of(model)
    for inputs in (first, then, first):
        assert error(gradients, inputs) < EXACT
    assert general_names(gradients, then) >= {"middle.weight", "middle.bias"}


def test_a_formula_is_checked_on_the_first_batch_that_has_gradients(monkeypatch):
    real = patterns.RULES["MmBackward0"]

    class Wrong:
        def __init__(self, known) -> None:
            self.rows = known.rows
            self.gradient = lambda cotangents, take: torch.mul(*known.gradient(cotangents, take)) * 1.001

    monkeypatch.setitem(patterns.RULES, "MmBackward0", lambda use: Wrong(real(use)))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 3)).double()
    gradients = gradients_of(model)
    nothing = torch.zeros(5, 4, dtype=torch.float64)
    assert general_names(gradients, nothing) == set()
    assert error(gradients, points(5)) < EXACT
    assert general_names(gradients, points(5)) == {"0.weight"}


class Attention(nn.Module):
    """Written out, so that keys have a bias of their own, in which the softmax has no gradient but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        tokens = torch.stack([inputs, inputs.sin(), inputs.roll(1, 1)], 1)
        shares = (self.query(tokens) @ self.key(tokens).transpose(1, 2)).softmax(-1)
        return self.out((shares @ self.value(tokens)).mean(1))


CANCELLING = {
    "keys": Attention,
    "normalized": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 2), nn.InstanceNorm1d(3), nn.Tanh(), nn.Flatten(), nn.Linear(9, 3)
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", CANCELLING)
def test_gradients_of_rounding_alone_are_no_reason_for_the_general_way(name, dtype):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = CANCELLING[name]().to(dtype)
    inputs = points(6).to(dtype)
    gradients, general = gradients_of(model), GeneralGradients(Network(model, select(model)))
    assert general_names(gradients, inputs) == set()
    bound = EXACT if dtype == torch.float64 else 1e-5
    assert error(gradients, inputs) < bound
    assert error(general, inputs) < bound
    assert general.failure is None


def test_a_check_that_fails_leaves_no_hooks_on_the_graph(monkeypatch):
    """Hooks would keep the activations of a batch for ever, where memory ran out and half of it is tried."""
    kept = []

    def fails(*_):
        raise RuntimeError("can't allocate memory")

    class Kept(graph.Recording):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            kept.append(self)

    monkeypatch.setattr(collector, "Recording", Kept)
    monkeypatch.setattr(patterns, "find_layout", fails)
    gradients = gradients_of(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)))
    with gradients._network.evaluating():
        with pytest.raises(RuntimeError, match="allocate"):
            gradients._collector.forward(torch.randn(6, 4))
        (recording,) = kept
        recording.pull_back([], torch.ones(6, 3), list(recording.leaves))  # through every step: a hook would fail again
