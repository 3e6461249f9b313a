"""The sum of the one-pass solver at labels drawn from the model is the GGN on average, however many are drawn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import oracles
from shorthand import paper_slu
from slu.likelihoods import Classification, Likelihood, Multilabel, Regression

SEEDS = range(30)

# The squared distance below has mean 1 if the sums are unbiased and, spread over a few directions, a
# standard deviation of at most √2: 3 squared is more than five of those away.
BOUND = 3.0


class FlatLabels(Classification):
    """A control: every label equally likely, whatever the model says."""

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        return super().sample(torch.zeros_like(outputs), uniform)


class Repeated(Classification):
    """A control: rows at four labels, each as long as if it were the only one."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 2 * super().loss(outputs, targets)


def summed(likelihood: Likelihood, labels: int, seed: int) -> Tensor:
    """(p, p) the solver's sum, whole: no sketch, and every direction kept."""
    model, inputs = network()
    settings = {"budget": 51 * 51, "oversampling": 51, "sketch": "identity", "labels_per_point": labels}
    found = paper_slu(model, likelihood, solver="stream", seed=seed, **settings).fit(list(inputs.split(5))).subspace
    values = torch.from_numpy(found.diagnostics.ritz_values.copy())
    return found.basis.T @ (values[:, None] * found.basis)


def network() -> tuple[torch.nn.Module, Tensor]:
    model, inputs = oracles.network("mlp")
    with torch.no_grad():
        model[2].weight.mul_(4)  # predictions far from even, so that flat labels differ
    return model, inputs


def distance(likelihood: Likelihood, name: str, labels: int) -> float:
    """‖mean of the sums over seeds - G‖ over the standard error of that mean: about 1 if they agree."""
    found = torch.stack([summed(likelihood, labels, seed) for seed in SEEDS])
    expected = oracles.ggn(*network(), name)
    return float((found.mean(0) - expected).norm() / (found.var(0).sum() / len(SEEDS)).sqrt())


@pytest.mark.parametrize("labels", [1, 4])
@pytest.mark.parametrize(
    ("likelihood", "name"),
    [(Classification(), "classification"), (Regression(), "regression"), (Multilabel(), "multilabel")],
    ids=["classification", "regression", "multilabel"],
)
def test_the_mean_over_seeds_is_the_ggn(likelihood, name, labels):
    assert distance(likelihood, name, labels) < BOUND


@pytest.mark.parametrize(("likelihood", "labels"), [(FlatLabels(), 1), (Repeated(), 4)], ids=["flat", "not divided"])
def test_control_other_labels_or_other_lengths_are_noticed(likelihood, labels):
    assert distance(likelihood, "classification", labels) > BOUND


def test_more_labels_have_less_variance():
    """Of independent draws a quarter; a third is between that and none less."""
    one, four = (torch.stack([summed(Classification(), labels, seed) for seed in SEEDS]) for labels in (1, 4))
    assert float(four.var(0).sum()) < float(one.var(0).sum()) / 3
