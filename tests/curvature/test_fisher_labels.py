"""Labels sampled from the model: the mean of the Fisher over seeds is the GGN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import oracles
from shorthand import curvature, vectors
from slu.likelihoods import Classification, Likelihood, Multilabel, Regression

SEEDS = range(150)


class FlatLabels(Classification):
    """The control: every label equally likely, whatever the model says."""

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        return super().sample(torch.zeros_like(outputs), uniform)


class PlainLabels(Multilabel):
    """The control for weights: labels as if there were none."""

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        return (uniform < outputs.sigmoid()).to(outputs.dtype)


def distance(likelihood: Likelihood) -> float:
    """‖mean of F v over seeds - G v‖ over the standard error of that mean: about 1 if they agree."""
    model, inputs = oracles.network("mlp")
    with torch.no_grad():
        model[2].weight.mul_(4)  # predictions far from even, so that flat labels differ
    vector = vectors(51, 1)[:, 0]
    actual = torch.stack([curvature(model, inputs, likelihood, kind="fisher", seed=seed) @ vector for seed in SEEDS])
    expected = curvature(model, inputs, likelihood) @ vector
    return float((actual.mean(0) - expected).norm() / (actual.var(0).sum() / len(SEEDS)).sqrt())


# The squared distance has mean 1 and, with few effective directions, a spread of about 1.4:
# 3 is six of those away.
BOUND = 3.0


@pytest.mark.parametrize(
    "likelihood",
    [Classification(), Regression(), Regression(0.2), Multilabel(), Multilabel([0.1, 1.0, 6.0])],
    ids=["classification", "regression", "noisy regression", "multilabel", "weighted multilabel"],
)
def test_mean_over_seeds_is_the_ggn(likelihood):
    assert distance(likelihood) < BOUND


@pytest.mark.parametrize("likelihood", [FlatLabels(), PlainLabels([0.1, 1.0, 6.0])], ids=["flat", "no weights"])
def test_control_labels_from_elsewhere_are_noticed(likelihood):
    assert distance(likelihood) > BOUND


def test_a_seed_repeats_and_another_seed_differs():
    model, inputs = oracles.network("mlp")
    vector = vectors(51, 1)[:, 0]
    first, again, other = (curvature(model, inputs, kind="fisher", seed=seed) @ vector for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, rtol=1e-3)
