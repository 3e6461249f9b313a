"""G v for every kind, network and likelihood, against dense float64 matrices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import oracles
from positions import Tagger, padded, seeded, texts
from shorthand import curvature, relative_error, split, vectors
from slu.curvature import CURVATURES, Curvature
from slu.data.fingerprint import example_keys, uniforms
from slu.errors import DataError, ModelError, SettingError
from slu.gradients import Network
from slu.likelihoods import resolve
from slu.parameters import select

# float64 rounds at 1e-16; sums over 12 points and some hundred parameters stay below 1e-13.
EXACT = 1e-11
KINDS = tuple(CURVATURES)
SEED = 3


def dense(kind: str, model: torch.nn.Module, inputs: Tensor, targets: Tensor, likelihood: str) -> Tensor:
    """The oracle's (p, p) matrix of a kind."""
    if kind == "ggn":
        return oracles.ggn(model, inputs, likelihood)
    if kind == "hessian":
        return oracles.hessian(model, inputs, targets, likelihood)
    if kind == "fisher":
        outputs = oracles.outputs_of(model, inputs).detach()
        drawn = uniforms(example_keys(inputs, len(inputs)), outputs.shape[1], SEED, "labels")
        targets = resolve(likelihood).sample(outputs, drawn)
    return oracles.outer_products(model, inputs, targets, likelihood)


@pytest.mark.parametrize("network", oracles.NETWORKS)
@pytest.mark.parametrize("likelihood", oracles.LIKELIHOODS)
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_dense_matrix(kind, likelihood, network):
    model, inputs = oracles.network(network)
    targets = oracles.targets_for(likelihood)
    expected = dense(kind, model, inputs, targets, likelihood)
    loader = split(inputs, targets, sizes=[5, 4, 3])
    operator = curvature(model, loader, likelihood, kind=kind, seed=SEED)
    columns = vectors(operator.shape[0])
    assert relative_error(operator @ columns, expected @ columns) < EXACT


def test_control_the_kinds_differ():
    model, inputs = oracles.network("mlp")
    targets = oracles.targets_for("classification")
    vector = vectors(51, 1)[:, 0]
    actual = [curvature(model, (inputs, targets), kind=kind) @ vector for kind in KINDS]
    assert min(relative_error(a, b) for i, a in enumerate(actual) for b in actual[:i]) > 1e-2


@pytest.fixture
def mlp() -> tuple[torch.nn.Module, Tensor, Tensor]:
    model, inputs = oracles.network("mlp")
    return model, inputs, oracles.targets_for("classification")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [[5, 7], [1] * 12, [4, 4, 4], [11, 1]])
def test_the_split_into_batches_does_not_matter(mlp, kind, sizes):
    model, inputs, targets = mlp
    vector = vectors(51, 1)[:, 0]
    whole = curvature(model, (inputs, targets), kind=kind) @ vector
    assert relative_error(curvature(model, split(inputs, targets, sizes=sizes), kind=kind) @ vector, whole) < EXACT


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_points_and_batches_does_not_matter(mlp, kind):
    model, inputs, targets = mlp
    vector = vectors(51, 1)[:, 0]
    order = torch.randperm(12, generator=torch.Generator().manual_seed(5))
    shuffled = split(inputs[order], targets[order], sizes=[3, 9])
    whole = curvature(model, (inputs, targets), kind=kind) @ vector
    assert relative_error(curvature(model, shuffled, kind=kind) @ vector, whole) < EXACT


def test_control_one_point_less_is_another_matrix(mlp):
    model, inputs, targets = mlp
    vector = vectors(51, 1)[:, 0]
    whole = curvature(model, (inputs, targets)) @ vector
    assert relative_error(curvature(model, (inputs[1:], targets[1:])) @ vector, whole) > 1e-3


def test_points_are_summed_and_not_averaged(mlp):
    model, inputs, targets = mlp
    vector = vectors(51, 1)[:, 0]
    once = curvature(model, [(inputs, targets)]) @ vector
    assert relative_error(curvature(model, [(inputs, targets)] * 3) @ vector, 3 * once) < EXACT


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_of_columns_takes_one_pass(mlp, kind):
    model, inputs, targets = mlp
    operator = curvature(model, split(inputs, targets, sizes=[6, 6]), kind=kind)
    columns = vectors(51, 4)
    together = operator @ columns
    assert (together.shape, operator.passes) == ((51, 4), 1)
    for i in range(4):
        assert relative_error(operator @ columns[:, i], together[:, i]) < EXACT
    assert operator.passes == 5


def test_no_columns_need_no_pass(mlp):
    operator = curvature(mlp[0], mlp[1:])
    assert (operator @ torch.zeros(51, 0)).shape == (51, 0)
    assert operator.passes == 0


def test_the_operator_says_what_it_is(mlp):
    model, inputs, targets = mlp
    operator = curvature(model, split(inputs, targets, sizes=[5, 7]))
    assert (operator.shape, operator.dtype, operator.device) == ((51, 51), torch.float64, torch.device("cpu"))
    assert (operator.points, operator.outputs, operator.passes) == (0, 0, 0)
    _ = operator @ vectors(51, 1)
    assert (operator.points, operator.outputs, operator.passes) == (12, 3, 1)


@pytest.mark.parametrize("names", [["2.weight"], ["0.bias", "2.bias"], ["0.weight", "2.weight"]])
@pytest.mark.parametrize("kind", ["ggn", "hessian"])
def test_chosen_parameters_give_a_block_of_the_whole_matrix(mlp, kind, names):
    model, inputs, targets = mlp
    picked = torch.cat([torch.full((v.numel(),), n in names) for n, v in model.named_parameters()])
    block = dense(kind, model, inputs, targets, "classification")[picked][:, picked]
    operator = curvature(model, (inputs, targets), kind=kind, params=names)
    columns = vectors(len(block))
    assert relative_error(operator @ columns, block @ columns) < EXACT


def tiny(kind: str) -> Curvature:
    model, inputs = oracles.network("mlp", seed=1)
    return curvature(model, (inputs, oracles.targets_for("classification")), kind=kind)


entries = st.lists(st.floats(-10, 10, width=32), min_size=51, max_size=51).map(lambda v: torch.tensor(v).double())


@settings(max_examples=15, deadline=None)
@given(a=entries, b=entries, scale=st.floats(-3, 3))
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_linear_and_symmetric(kind, a, b, scale):
    operator = tiny(kind)
    left, right = operator @ a, operator @ b
    size = float(left.norm() + right.norm()) * float(1 + a.norm() + b.norm())
    assert (operator @ (a + scale * b) - left - scale * right).norm() <= EXACT * (1 + size)
    assert abs(float(a @ right - b @ left)) <= EXACT * (1 + size)


@settings(max_examples=15, deadline=None)
@given(vector=entries)
@pytest.mark.parametrize("kind", ["ggn", "fisher", "empirical-fisher"])
def test_all_kinds_but_the_hessian_are_positive_semidefinite(kind, vector):
    operator = tiny(kind)
    assert vector @ (operator @ vector) >= -EXACT * (1 + vector.square().sum())


def test_control_the_hessian_is_not_positive_semidefinite(mlp):
    model, inputs, targets = mlp
    matrix = curvature(model, (inputs, targets), kind="hessian") @ torch.eye(51, dtype=torch.float64)
    assert torch.linalg.eigvalsh(matrix)[0] < -1e-3


def test_targets_are_needed_only_where_they_are_read(mlp):
    model, inputs, targets = mlp
    vector = vectors(51, 1)[:, 0]
    for kind in ("ggn", "fisher"):
        assert torch.equal(curvature(model, inputs, kind=kind) @ vector, curvature(model, mlp[1:], kind=kind) @ vector)
    for kind in ("empirical-fisher", "hessian"):
        with pytest.raises(DataError, match=f"curvature='{kind}' needs targets, but batch 1 has inputs alone"):
            _ = curvature(model, [(inputs, targets), inputs], kind=kind) @ vector


@pytest.mark.parametrize("shape", [(50,), (50, 2), (2, 51), (51, 1, 1), ()])
def test_vectors_of_another_shape_are_refused(mlp, shape):
    with pytest.raises(DataError, match=r"cannot multiply \(51, 51\) with"):
        _ = curvature(mlp[0], mlp[1:]) @ torch.zeros(shape)


def test_an_unknown_kind_is_refused_with_all_valid_ones(mlp):
    with pytest.raises(SettingError) as error:
        curvature(mlp[0], mlp[1:], kind="gauss-newton")
    assert all(repr(kind) in str(error.value) for kind in KINDS)


def test_other_padding_in_a_later_pass_is_no_matter():
    """Outputs at positions that do not count are not compared: there are more of them, with other values."""
    model, batch = seeded(Tagger), texts(9)
    passes = [padded(batch, 0), padded(batch, 4, 5)]

    class Loader:
        def __iter__(self):
            return iter([passes.pop(0)])

    operator = Curvature(Network(model, select(model), positions=True), resolve("classification"), Loader())
    vector = torch.ones(operator.shape[1], dtype=operator.dtype)
    torch.testing.assert_close(operator @ vector, operator @ vector, rtol=1e-9, atol=1e-10)
    assert operator.passes == 2


class Bag(torch.nn.Sequential):
    """Means of words, of which torch has no second derivative."""

    def __init__(self) -> None:
        super().__init__(torch.nn.EmbeddingBag(20, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


@pytest.mark.parametrize("kind", ["ggn", "hessian", "empirical-fisher"])
def test_a_step_without_a_second_derivative_is_named_with_what_to_do(kind):
    words = torch.arange(40).reshape(10, 4) % 20
    operator = curvature(Bag(), (words, torch.arange(10) % 3), "classification", kind=kind)
    with pytest.raises(ModelError, match=r"cannot be differentiated twice.*_embedding_bag_backward.*solver='stream'"):
        operator @ torch.ones(operator.shape[1])
