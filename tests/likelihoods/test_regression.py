"""Gaussian noise: the variance scales everything, and shapes must agree."""

from __future__ import annotations

import pytest
import torch

from slu.errors import DataError, SettingError
from slu.likelihoods import Regression

OUTPUTS = torch.tensor([[1.0, -2.0], [0.5, 4.0], [0.0, 3.0]], dtype=torch.float64)


@pytest.mark.parametrize("variance", [0.25, 1.0, 9.0])
def test_loss_hessian_and_factor_scale_with_the_noise(variance):
    likelihood = Regression(variance)
    assert torch.equal(likelihood.loss(OUTPUTS, torch.zeros_like(OUTPUTS)), OUTPUTS.square().sum(1) / (2 * variance))
    assert torch.equal(likelihood.hessian_product(OUTPUTS, OUTPUTS), OUTPUTS / variance)
    assert torch.equal(likelihood.factor_product(OUTPUTS, OUTPUTS), OUTPUTS / variance**0.5)


@pytest.mark.parametrize("variance", [0.25, 4.0])
def test_the_median_of_the_noise_is_zero_and_its_quantiles_are_those_of_a_normal(variance):
    likelihood = Regression(variance)
    middle = torch.full_like(OUTPUTS, 0.5)
    assert torch.equal(likelihood.sample(OUTPUTS, middle), OUTPUTS)
    one_sigma = torch.full_like(OUTPUTS, 0.8413447460685429)
    torch.testing.assert_close(likelihood.sample(OUTPUTS, one_sigma) - OUTPUTS, torch.full_like(OUTPUTS, variance**0.5))


def test_one_output_takes_targets_without_a_second_dimension():
    actual = Regression().loss(OUTPUTS[:, :1], torch.zeros(3, dtype=torch.float64))
    assert torch.equal(actual, OUTPUTS[:, 0].square() / 2)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (2, 2), (3, 2, 1)])
def test_targets_of_another_shape_are_refused_and_not_broadcast(shape):
    with pytest.raises(DataError, match=r"shaped like the outputs, \(3, 2\); got"):
        Regression().loss(OUTPUTS, torch.zeros(shape))


@pytest.mark.parametrize("variance", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_variances_are_refused(variance):
    with pytest.raises(SettingError, match="positive and finite"):
        Regression(variance)
