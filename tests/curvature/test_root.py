"""Rows whose outer products sum to the curvature: against dense formulas, in order, and with the network put back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import awkward
import oracles
from positions import Tagger, seeded, texts
from shorthand import curvature, relative_error, split
from slu.curvature import RootRows
from slu.errors import DataError, ModelError, SettingError
from slu.gradients import Network, Rows
from slu.likelihoods import Classification, Likelihood, Regression, resolve
from slu.parameters import Choice, select
from untouched import assert_same, snapshot

SPLITS = [[12], [5, 7], [1] * 12]


def factors(
    model: nn.Module,
    data: Any,
    likelihood: str | Likelihood = "classification",
    *,
    kind: str = "ggn",
    seed: int = 0,
    params: Choice = None,
) -> RootRows:
    return RootRows(Network(model, select(model, params)), resolve(likelihood), data, kind=kind, seed=seed)


def collected(source: RootRows) -> Tensor:
    """(rows, p) in the order they came, put together from their pieces; each coordinate comes once."""
    p = source._network.selection.count
    actual: list[Tensor] = []

    def consumer(rows: Rows) -> None:
        whole = torch.full((*rows.shape, p), torch.nan, dtype=torch.float64)
        for start, values in rows.pieces:
            assert values.shape[:2] == rows.shape
            assert bool(whole[..., start : start + values.shape[-1]].isnan().all())
            assert not values.requires_grad
            whole[..., start : start + values.shape[-1]] = values
        assert not bool(whole.isnan().any())
        actual.append(whole.flatten(0, 1))

    source.feed(consumer)
    return torch.cat(actual)


@pytest.mark.parametrize("likelihood", oracles.LIKELIHOODS)
@pytest.mark.parametrize("kind", oracles.NETWORKS)
def test_outer_products_of_the_ggns_rows_sum_to_it(kind, likelihood):
    model, inputs = oracles.network(kind)
    expected = oracles.ggn(model, inputs, likelihood)
    rows = torch.empty(0)
    for sizes in SPLITS[:2]:
        source = factors(model, split(inputs, sizes=sizes), likelihood)
        rows = collected(source)
        assert len(rows) == 36
        assert relative_error(rows.T @ rows, expected) < 1e-12
        assert (source.points, source.outputs) == (12, 3)
    # Control: a point less is another matrix.
    assert relative_error(rows[:-3].T @ rows[:-3], expected) > 1e-3


@pytest.mark.parametrize("kind", oracles.NETWORKS)
def test_rows_come_in_the_order_of_the_data(kind):
    """With H = 4 I the rows are twice those of J, point by point and output by output."""
    model, inputs = oracles.network(kind)
    expected = 2 * oracles.jacobian(model, inputs).flatten(0, 1)
    for sizes in SPLITS:
        rows = collected(factors(model, split(inputs, sizes=sizes), Regression(0.25)))
        torch.testing.assert_close(rows, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("likelihood", oracles.LIKELIHOODS)
@pytest.mark.parametrize("kind", ["mlp", "conv", "encoder"])
def test_empirical_fisher_has_the_gradients_at_the_targets(kind, likelihood):
    model, inputs = oracles.network(kind)
    targets = oracles.targets_for(likelihood)
    expected = oracles.outer_products(model, inputs, targets, likelihood)
    for sizes in SPLITS[:2]:
        rows = collected(factors(model, split(inputs, targets, sizes=sizes), likelihood, kind="empirical-fisher"))
        assert len(rows) == 12
        assert relative_error(rows.T @ rows, expected) < 1e-12


@pytest.mark.parametrize("likelihood", oracles.LIKELIHOODS)
def test_sampled_labels_belong_to_the_points_and_not_to_the_batches(likelihood):
    model, inputs = oracles.network("mlp")
    whole = collected(factors(model, inputs, likelihood, kind="fisher", seed=3))
    assert len(whole) == 12
    for sizes in SPLITS:
        cut = collected(factors(model, split(inputs, sizes=sizes), likelihood, kind="fisher", seed=3))
        torch.testing.assert_close(cut, whole, rtol=1e-9, atol=1e-12)
    turned = collected(factors(model, inputs.flip(0), likelihood, kind="fisher", seed=3))
    torch.testing.assert_close(turned.flip(0), whole, rtol=1e-9, atol=1e-12)
    # The products of `Curvature` have the same labels.
    product = curvature(model, inputs, likelihood, kind="fisher", seed=3) @ torch.eye(51, dtype=torch.float64)
    assert relative_error(whole.T @ whole, product) < 1e-12
    # Control: another seed has others.
    other = collected(factors(model, inputs, likelihood, kind="fisher", seed=4))
    assert relative_error(other, whole) > 1e-2


def test_chosen_parameters_alone():
    model, inputs = oracles.network("mlp")
    rows = collected(factors(model, inputs, params="2.*"))
    expected = oracles.ggn(model, inputs, "classification", names=["2.weight", "2.bias"])
    assert relative_error(rows.T @ rows, expected) < 1e-12


@pytest.mark.parametrize("trap", [awkward.CustomFunction, awkward.ControlFlow])
def test_networks_that_cannot_be_batched_go_point_by_point(trap):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, inputs = trap().double(), torch.randn(12, 4, dtype=torch.float64)
    # Control flow that looks at the whole batch is no function of one point: here each is alone.
    rows = collected(factors(model, list(inputs.split(1))))
    jacobian = torch.cat([oracles.jacobian(model, one) for one in inputs.split(1)])
    outputs = torch.cat([model(one) for one in inputs.split(1)])
    expected = torch.einsum("bip,bij,bjq->pq", jacobian, oracles.output_hessian("classification", outputs), jacobian)
    assert relative_error(rows.T @ rows, expected) < 1e-12


def test_half_precision_is_summed_in_single():
    model, inputs = oracles.network("mlp")
    seen: list[torch.dtype] = []
    factors(model.bfloat16(), inputs.bfloat16()).feed(
        lambda rows: seen.extend(values.dtype for _, values in rows.pieces)
    )
    assert set(seen) == {torch.float32}


def test_every_pass_starts_anew_and_tells_of_each_batch():
    model, inputs = oracles.network("mlp")
    source = factors(model, split(inputs, sizes=[5, 7]))
    first = collected(source)
    told: list[int] = []
    source.feed(lambda rows: None, lambda: told.append(source.points))
    assert told == [5, 12]
    assert torch.equal(collected(source), first)
    assert source.seen.points == 12


class Stopped(BaseException):
    """As Ctrl-C: not an Exception."""


@pytest.mark.parametrize("error", [RuntimeError, Stopped])
@pytest.mark.parametrize("kind", ["conv", "encoder"])
def test_an_exception_of_the_consumer_puts_the_network_back(kind, error):
    model, inputs = oracles.network(kind)
    before = snapshot(model)
    raised = error("here")

    def consumer(rows: Rows) -> None:
        # The control: while rows are made it is not as it was.
        with pytest.raises(AssertionError):
            assert_same(before, snapshot(model))
        raise raised

    try:
        factors(model, split(inputs, sizes=[5, 7])).feed(consumer)
    except error as reason:
        # The traceback holds every frame alive, as a debugger or a notebook does.
        assert reason is raised
        assert_same(before, snapshot(model))
    else:
        pytest.fail("the exception was lost")


def test_what_cannot_be():
    model, inputs = oracles.network("mlp")
    for kind, error, message in [
        ("hessian", DataError, "no sum of squares; use curvature='ggn'"),
        ("empirical-fisher", DataError, "needs targets, but batch 0 has inputs alone"),
    ]:
        with pytest.raises(error, match=message):
            collected(factors(model, inputs, kind=kind))
    with pytest.raises(SettingError, match="unknown curvature 'kfac'"):
        factors(model, inputs, kind="kfac")
    with pytest.raises(DataError, match="the inputs of batch 1 hold NaN"):
        collected(factors(model, [(inputs,), (inputs * torch.nan,)]))
    with pytest.raises(DataError, match="gave no batch"):
        collected(factors(model, []))


class Centered(nn.Module):
    """Outputs that depend on the rest of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3).double()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs - inputs.mean(0))


def test_a_network_that_mixes_points_is_refused_before_any_row():
    _, inputs = oracles.network("mlp")
    came: list[Rows] = []
    with pytest.raises(ModelError, match="depend on the rest of its batch"):
        factors(Centered(), inputs).feed(came.append)
    assert not came


def test_a_factor_of_another_shape_is_refused():
    class Narrow(Classification):
        def factor_product(self, outputs, vectors, *, transpose=False):
            return super().factor_product(outputs, vectors, transpose=transpose)[..., :2]

    model, inputs = oracles.network("mlp")
    with pytest.raises(DataError, match="factor_product made"):
        RootRows(Network(model, select(model)), Narrow(), inputs).feed(lambda rows: None)


@pytest.mark.parametrize("kind", ["ggn", "fisher"])
def test_where_positions_are_is_looked_for_once_however_many_vectors_are_drawn(kind, monkeypatch):
    inputs, _ = texts(9)
    model, grid, looked = seeded(Tagger), Network.grid, []

    def counted(*of_batch):
        looked.append(1)
        return grid(*of_batch)

    monkeypatch.setattr(Network, "grid", counted)
    for draws in (1, 6):
        network = Network(model, select(model), positions=True)
        RootRows(network, resolve("classification"), inputs, kind=kind, draws=draws).feed(lambda rows: None)
        looked.append(0)
    first = looked.index(0)
    assert looked[first + 1 :] == looked[: first + 1]
