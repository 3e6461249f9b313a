"""Rows of Jacobians of single examples the general way, many at once or one by one: always the oracle's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import awkward
import oracles
from shorthand import jacobian_rows, relative_error
from slu.gradients import GeneralGradients, Network
from slu.gradients import general as module
from slu.parameters import select

EXACT = 1e-12
ALL, ONE = 10**9, 1


def general_gradients(model: nn.Module, max_numbers: int = ALL, params=None) -> GeneralGradients:
    return GeneralGradients(Network(model, select(model, params)), max_numbers)


def pieces(gradients: GeneralGradients, inputs: Tensor, vectors: Tensor | None = None) -> list[tuple[slice, slice]]:
    """Which examples and vectors came in each piece."""
    unit = torch.eye(3, dtype=torch.float64).expand(len(inputs), 3, 3)
    with gradients._network.evaluating():
        return [(rows.examples, rows.vectors) for rows in gradients(inputs, unit if vectors is None else vectors)]


def rows_of(gradients: GeneralGradients, inputs, points: int = 12) -> Tensor:
    with gradients._network.evaluating():
        return jacobian_rows(gradients, inputs, points)


def one_by_one(examples: int, vectors: int = 3) -> list[tuple[slice, slice]]:
    return [(slice(i, i + 1), slice(j, j + 1)) for i in range(examples) for j in range(vectors)]


@pytest.mark.parametrize("network", oracles.NETWORKS)
@pytest.mark.parametrize("examples", [12, 5, 0], ids=["all at once", "five at once", "one by one"])
def test_rows_are_the_jacobian(network, examples):
    model, inputs = oracles.network(network)
    gradients = general_gradients(model, max_numbers=examples * 3 * select(model).count)
    assert relative_error(rows_of(gradients, inputs), oracles.jacobian(model, inputs)) < EXACT


def test_control_another_point_has_another_jacobian():
    model, inputs = oracles.network("mlp")
    assert relative_error(rows_of(general_gradients(model), inputs), oracles.jacobian(model, inputs.flip(0))) > 0.1


@pytest.mark.parametrize(
    ("max_numbers", "expected"),
    [
        # Four examples of three rows each have the activations of the batch of twelve.
        (ALL, [(slice(a, a + 4), slice(0, 3)) for a in (0, 4, 8)]),
        (3 * 3 * 51 + 10, [(slice(a, a + 3), slice(0, 3)) for a in (0, 3, 6, 9)]),
        (3 * 51 - 1, one_by_one(12)),
        (0, one_by_one(12)),
    ],
)
def test_pieces_fit_the_room_and_cover_everything_in_order(max_numbers, expected):
    model, inputs = oracles.network("mlp")
    assert pieces(general_gradients(model, max_numbers), inputs) == expected


@pytest.mark.parametrize("max_numbers", [ALL, ONE])
def test_vectors_combine_rows(max_numbers):
    model, inputs = oracles.network("mlp")
    vectors = torch.randn(12, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradients = general_gradients(model, max_numbers, params="2.*")
    expected = torch.einsum("bqt,btp->bqp", vectors, oracles.jacobian(model, inputs, ["2.weight", "2.bias"]))
    with gradients._network.evaluating():
        for rows in gradients(inputs, vectors):
            actual = torch.cat([values for _, values in rows.pieces], 2)
            assert not actual.requires_grad
            assert relative_error(actual, expected[rows.examples, rows.vectors]) < EXACT


def alone(model: nn.Module, inputs: Tensor) -> Tensor:
    """The oracle's Jacobian of each example in a batch of its own."""
    for part in model.modules():
        if isinstance(part, nn.Embedding):
            part.sparse = False
    return torch.cat([oracles.jacobian(model, one[None]) for one in inputs])


@pytest.mark.parametrize("max_numbers", [ALL, ONE])
@pytest.mark.parametrize(
    "name",
    ["custom function", "control flow", "checkpointed", "in place", "sparse", "recurrent", "attention", "weight norm"],
)
def test_awkward_networks_have_the_same_rows(name, max_numbers):
    model, inputs = awkward.build(name)
    actual = rows_of(general_gradients(model, max_numbers), inputs)
    assert relative_error(actual, alone(model, inputs)) < EXACT


@pytest.mark.parametrize("name", ["custom function", "control flow", "checkpointed", "sparse"])
def test_what_vmap_cannot_pass_goes_one_by_one_from_then_on(monkeypatch, name):
    model, inputs = awkward.build(name)
    gradients = general_gradients(model)
    assert pieces(gradients, inputs) == one_by_one(12)
    monkeypatch.setattr(module, "vmap", _never)
    assert pieces(gradients, inputs) == one_by_one(12)


@pytest.mark.parametrize("points", [2, 6, 9, 12])
def test_wrong_rules_of_vmap_are_noticed(points):
    """PReLU's gives, for as many examples as vectors, gradients of the right shape and the wrong values."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.PReLU(), nn.Linear(5, 3)).double()
        inputs = torch.randn(points, 4, dtype=torch.float64)
    actual = rows_of(general_gradients(model), inputs, points)
    assert relative_error(actual, oracles.jacobian(model, inputs)) < EXACT


@pytest.mark.parametrize("wrong", [lambda rows: 1.001 * rows, lambda rows: rows.flip(0), lambda rows: rows[:1]])
def test_rows_by_vmap_are_compared_with_a_plain_backward_pass(monkeypatch, wrong):
    model, inputs = oracles.network("mlp")
    real = GeneralGradients._vmapped

    def bad(*args):
        actual = real(*args)
        return actual | {"2.weight": wrong(actual["2.weight"])}

    monkeypatch.setattr(GeneralGradients, "_vmapped", bad)
    gradients = general_gradients(model)
    assert pieces(gradients, inputs) == one_by_one(12)
    assert relative_error(rows_of(gradients, inputs), oracles.jacobian(model, inputs)) < EXACT


def _never(*_):
    raise AssertionError("vmap was tried again")


@pytest.fixture
def memory_for(monkeypatch):
    """Lets torch run out of memory above some number of examples at once; gives the sizes tried."""

    def install(limit: int, error: RuntimeError) -> list[int]:
        tried: list[int] = []
        real = module.vmap

        def limited(function):
            def call(first, *rest):
                if function.__name__ == "rows":
                    tried.append(len(first))
                    if len(first) > limit:
                        raise error
                return real(function)(first, *rest)

            return call

        monkeypatch.setattr(module, "vmap", limited)
        return tried

    return install


CARD = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
HOST = RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to ...")


@pytest.mark.parametrize("error", [CARD, HOST], ids=["card", "host"])
def test_out_of_memory_halves_the_samples_at_once_and_remembers(memory_for, error):
    model, inputs = oracles.network("mlp")
    gradients = general_gradients(model)
    tried = memory_for(2, error)
    actual = rows_of(gradients, inputs)
    assert tried == [4, 2, 2, 2, 2, 2, 2]
    assert relative_error(actual, oracles.jacobian(model, inputs)) < EXACT
    tried.clear()
    rows_of(gradients, inputs)
    assert tried == [2, 2, 2, 2, 2, 2]


def test_out_of_memory_with_one_sample_goes_row_by_row(memory_for):
    model, inputs = oracles.network("mlp")
    gradients = general_gradients(model)
    tried = memory_for(0, CARD)
    assert pieces(gradients, inputs) == one_by_one(12)
    assert tried == [4, 2, 1]


def test_out_of_memory_midway_keeps_what_was_done(memory_for):
    model, inputs = oracles.network("mlp")
    gradients = general_gradients(model, max_numbers=4 * 3 * 51)
    tried = memory_for(ALL, CARD)
    actual = []
    unit = torch.eye(3, dtype=torch.float64).expand(12, 3, 3)
    with gradients._network.evaluating():
        for rows in gradients(inputs, unit):
            actual.append(rows.examples)
            if len(actual) == 1:
                tried = memory_for(2, CARD)
    assert actual == [slice(0, 4), *(slice(i, i + 2) for i in range(4, 12, 2))]
    assert tried[0] == 4


@pytest.mark.parametrize("max_numbers", [ALL, ONE])
def test_an_error_of_the_model_itself_comes_through(max_numbers):
    model, inputs = oracles.network("mlp")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        pieces(general_gradients(model, max_numbers), inputs[:, :2])


@pytest.mark.parametrize("max_numbers", [ALL, ONE])
def test_parameters_that_do_not_matter_have_zero_rows(max_numbers):
    model, inputs = oracles.network("mlp")
    model.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    assert torch.equal(
        rows_of(general_gradients(model, max_numbers, params="unused"), inputs),
        torch.zeros(12, 3, 2, dtype=torch.float64),
    )
    both = rows_of(general_gradients(model, max_numbers), inputs)
    assert relative_error(both, oracles.jacobian(model, inputs)) < EXACT


@pytest.mark.parametrize("max_numbers", [ALL, 4 * 3 * 43, ONE])
def test_inputs_may_be_nested_shared_or_no_tensors_at_all(max_numbers):
    model, left = awkward.build("two inputs")
    inputs = {"left": left, "right": left + 1, "scale": torch.tensor(2.0, dtype=torch.float64), "flip": True}
    plain = awkward.build("two inputs")[0]
    plain.forward = lambda both: awkward.TwoInputs.forward(plain, both, both + 1)
    expected = 2 * oracles.jacobian(plain, left).flip(1)
    assert relative_error(rows_of(general_gradients(model, max_numbers), inputs), expected) < EXACT


@pytest.mark.parametrize("max_numbers", [ALL, ONE])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_lower_precision_is_close(max_numbers, dtype, bound):
    model, inputs = oracles.network("mlp")
    expected = oracles.jacobian(model.to(dtype).double(), inputs.to(dtype).double())
    actual = rows_of(general_gradients(model.to(dtype), max_numbers), inputs.to(dtype))
    assert relative_error(actual, expected) < bound
