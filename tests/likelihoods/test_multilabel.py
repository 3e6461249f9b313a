"""Independent sigmoids: weights, confident outputs, refusals."""

from __future__ import annotations

import pytest
import torch

from slu.errors import DataError, SettingError
from slu.likelihoods import Multilabel

OUTPUTS = torch.tensor([[1.0, -2.0, 0.0], [0.5, 4.0, -7.0]], dtype=torch.float64)
LABELS = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
WEIGHTS = [0.5, 2.0, 8.0]
CONFIDENT = torch.tensor([[-80.0, -30.0, -9.0, 9.0, 30.0, 80.0]])


@pytest.mark.parametrize("weights", [WEIGHTS, torch.tensor(WEIGHTS), torch.tensor([WEIGHTS]), tuple(WEIGHTS)])
def test_weights_multiply_the_loss_and_the_hessian_of_their_label(weights):
    plain, weighted = Multilabel(), Multilabel(weights)
    scale = torch.tensor(WEIGHTS, dtype=torch.float64)
    by_label = torch.stack([plain.loss(OUTPUTS[:, [i]], LABELS[:, [i]]) for i in range(3)], 1)
    torch.testing.assert_close(weighted.loss(OUTPUTS, LABELS), (scale * by_label).sum(1))
    one = torch.ones_like(OUTPUTS)
    torch.testing.assert_close(weighted.hessian_product(OUTPUTS, one), scale * plain.hessian_product(OUTPUTS, one))
    torch.testing.assert_close(weighted.factor_product(OUTPUTS, one), scale.sqrt() * plain.factor_product(OUTPUTS, one))


def test_expectation_over_both_labels_is_the_weighted_hessian():
    likelihood = Multilabel(WEIGHTS)
    outputs = OUTPUTS.clone().requires_grad_()
    total = torch.zeros_like(OUTPUTS)
    # A uniform number just below or above σ(f) draws the label 1 or 0; their chances are σ(f) and σ(-f).
    for side, chance in ((-1e-6, OUTPUTS.sigmoid()), (1e-6, (-OUTPUTS).sigmoid())):
        labels = likelihood.sample(OUTPUTS, OUTPUTS.sigmoid() + side)
        (slope,) = torch.autograd.grad(likelihood.loss(outputs, labels).sum(), outputs)
        total += chance * slope.square()
    torch.testing.assert_close(total, likelihood.hessian_product(OUTPUTS, torch.ones_like(OUTPUTS)), rtol=1e-10, atol=0)


def test_confident_outputs_keep_their_accuracy_in_float32():
    # σ(f) σ(-f) in float64 is the reference: it does not cancel. ε of float32 is 6e-8, times |f| in the exponent.
    exact = CONFIDENT.double().sigmoid() * (-CONFIDENT.double()).sigmoid()
    actual = Multilabel().hessian_product(CONFIDENT, torch.ones_like(CONFIDENT)).double()
    factor = Multilabel().factor_product(CONFIDENT, torch.ones_like(CONFIDENT)).double()
    assert ((actual - exact) / exact).abs().max() < 1e-5
    assert ((factor - exact.sqrt()) / exact.sqrt()).abs().max() < 1e-5


def test_control_the_plain_formula_loses_confident_outputs():
    exact = CONFIDENT.double().sigmoid() * (-CONFIDENT.double()).sigmoid()
    plain = CONFIDENT.sigmoid() * (1 - CONFIDENT.sigmoid())
    assert ((plain.double() - exact) / exact).abs().max() > 0.5


def test_the_factor_lives_on_where_the_hessian_underflows():
    outputs = torch.tensor([[-150.0]])
    assert Multilabel().hessian_product(outputs, torch.ones(1, 1)) == 0
    torch.testing.assert_close(
        Multilabel().factor_product(outputs, torch.ones(1, 1)).double().log(),
        torch.tensor([[-75.0]], dtype=torch.float64),
        rtol=1e-5,
        atol=0,
    )


def test_sampling_without_weights_gives_plain_labels():
    uniform = torch.tensor([[0.7, 0.2, 0.49], [0.7, 0.9, 0.5]], dtype=torch.float64)
    assert Multilabel().sample(OUTPUTS, uniform).tolist() == [[1, 0, 1], [0, 1, 0]]


def test_one_output_takes_targets_without_a_second_dimension():
    actual = Multilabel().loss(OUTPUTS[:, :1], torch.tensor([1, 0]))
    torch.testing.assert_close(actual, torch.stack([-OUTPUTS[0, 0].sigmoid().log(), -(-OUTPUTS[1, 0]).sigmoid().log()]))


@pytest.mark.parametrize("targets", [torch.zeros(2), torch.zeros(2, 1), torch.zeros(3, 2)])
def test_targets_of_another_shape_are_refused_and_not_broadcast(targets):
    with pytest.raises(DataError, match=r"shaped like the outputs, \(2, 3\); got"):
        Multilabel().loss(OUTPUTS, targets)


@pytest.mark.parametrize("weights", [[1.0, 0.0, 1.0], [1.0, -1.0, 1.0], [1.0, float("nan"), 1.0], [float("inf")]])
def test_impossible_weights_are_refused(weights):
    with pytest.raises(SettingError, match="positive and finite"):
        Multilabel(weights)


@pytest.mark.parametrize("method", ["loss", "hessian_product", "factor_product", "sample"])
def test_a_wrong_number_of_weights_is_refused(method):
    with pytest.raises(DataError, match="2 label weights were given, the network has 3 outputs"):
        getattr(Multilabel([1.0, 1.0]), method)(OUTPUTS, LABELS)
