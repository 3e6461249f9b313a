"""The same products as an independent library's, on its own conventions."""

from __future__ import annotations

import pytest
from torch import nn

import oracles
from shorthand import curvature, relative_error, split, vectors

curvlinops = pytest.importorskip("curvlinops")
# Where it makes the first dual number of the process, torch compiles its rules with a deprecated function of its own.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@pytest.mark.parametrize("network", ["mlp", "conv", "tied"])
@pytest.mark.parametrize(
    ("likelihood", "loss", "factor"),
    [
        ("classification", nn.CrossEntropyLoss(reduction="sum"), 1),
        ("multilabel", nn.BCEWithLogitsLoss(reduction="sum"), 1),
        ("regression", nn.MSELoss(reduction="sum"), 2),  # without the half of a Gaussian's logarithm
    ],
)
def test_ggn_products_agree(network, likelihood, loss, factor):
    model, inputs = oracles.network(network)
    targets = oracles.targets_for(likelihood)
    loader = split(inputs, targets, sizes=[7, 5])
    theirs_model = oracles.network(network)[0].eval()
    parameters = list(theirs_model.parameters())
    theirs = curvlinops.GGNLinearOperator(theirs_model, loss, parameters, loader, check_deterministic=False)
    columns = vectors(sum(value.numel() for value in parameters), 2)
    expected = theirs @ columns
    # Both in float64: only the order of the sums differs.
    assert relative_error(factor * (curvature(model, loader, likelihood) @ columns), expected) < 1e-12


def test_hessian_products_agree():
    model, inputs = oracles.network("mlp")
    targets = oracles.targets_for("classification")
    loader = split(inputs, targets, sizes=[7, 5])
    theirs_model = oracles.network("mlp")[0].eval()
    theirs = curvlinops.HessianLinearOperator(
        theirs_model,
        nn.CrossEntropyLoss(reduction="sum"),
        list(theirs_model.parameters()),
        loader,
        check_deterministic=False,
    )
    columns = vectors(51, 2)
    assert relative_error(curvature(model, loader, kind="hessian") @ columns, theirs @ columns) < 1e-12


def test_control_the_mean_convention_differs_by_the_number_of_points():
    model, inputs = oracles.network("mlp")
    targets = oracles.targets_for("classification")
    theirs_model = oracles.network("mlp")[0].eval()
    theirs = curvlinops.GGNLinearOperator(
        theirs_model,
        nn.CrossEntropyLoss(reduction="mean"),
        list(theirs_model.parameters()),
        [(inputs, targets)],
        check_deterministic=False,
    )
    vector = vectors(51, 1)
    ours = curvature(model, (inputs, targets)) @ vector
    assert relative_error(ours / len(inputs), theirs @ vector) < 1e-12
    assert relative_error(ours, theirs @ vector) > 1
