"""The one-pass solver's sum is the GGN on average, with mixtures of labels as with drawn ones, however many."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

import oracles
from shorthand import paper_slu
from slu import Stream
from slu.likelihoods import Classification, Likelihood, Multilabel, Regression
from slu.subspace import SketchedSubspace

SEEDS = range(30)

# The squared distance below has mean 1 if the sums are unbiased and, spread over a few directions, a
# standard deviation of at most √2: 3 squared is more than five of those away.
BOUND = 3.0


class Flat(Classification):
    """A control: every label equally likely, whatever the model says."""

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        return super().sample(torch.zeros_like(outputs), uniform)

    def factor_product(self, outputs: Tensor, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        return super().factor_product(torch.zeros_like(outputs), vectors, transpose=transpose)


class Repeated(Classification):
    """A control: four mixtures, each as long as if it were the only one."""

    def factor_product(self, outputs: Tensor, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        return 2 * super().factor_product(outputs, vectors, transpose=transpose)


def summed(likelihood: Likelihood, labels: int, seed: int, curvature: str = "ggn") -> Tensor:
    """(p, p) the solver's sum, whole: no sketch, and every direction kept."""
    model, inputs = network()
    settings = {"budget": 51 * 51, "sketch": "identity", "solver": Stream(labels, oversampling=51)}
    method = paper_slu(model, likelihood, curvature=curvature, seed=seed, **settings)
    return dense(method.fit(list(inputs.split(5))).state.subspace)


def dense(subspace: SketchedSubspace) -> Tensor:
    """(p, p) Σ λ u uᵀ."""
    assert subspace.eigenvalues is not None
    return subspace.basis.T @ (torch.from_numpy(subspace.eigenvalues)[:, None] * subspace.basis)


@cache
def sums(kind: str, labels: int, curvature: str) -> Tensor:
    """(seeds, p, p) the solver's sums."""
    return torch.stack([summed(LIKELIHOODS[kind], labels, seed, curvature) for seed in SEEDS])


LIKELIHOODS: dict[str, Likelihood] = {
    "classification": Classification(),
    "regression": Regression(),
    "multilabel": Multilabel(),
    "flat": Flat(),
    "repeated": Repeated(),
}


def network() -> tuple[torch.nn.Module, Tensor]:
    model, inputs = oracles.network("mlp")
    with torch.no_grad():
        model[2].weight.mul_(4)  # predictions far from even, so that flat labels differ
    return model, inputs


def distance(kind: str, labels: int, curvature: str, truth: str) -> float:
    """‖mean of the sums over seeds - G‖ over the standard error of that mean: about 1 if they agree."""
    drawn = sums(kind, labels, curvature)
    expected = oracles.ggn(*network(), truth)
    return float((drawn.mean(0) - expected).norm() / (drawn.var(0).sum() / len(SEEDS)).sqrt())


@pytest.mark.parametrize(("curvature", "labels"), [("ggn", 1), ("ggn", 4), ("fisher", 1), ("fisher", 4)])
@pytest.mark.parametrize(
    "likelihood",
    [
        "classification",
        pytest.param("regression", marks=pytest.mark.slow),
        pytest.param("multilabel", marks=pytest.mark.slow),
    ],
)
def test_the_mean_over_seeds_is_the_ggn(likelihood, curvature, labels):
    assert distance(likelihood, labels, curvature, truth=likelihood) < BOUND


@pytest.mark.parametrize(
    ("likelihood", "curvature", "labels"),
    [("flat", "ggn", 1), ("flat", "fisher", 1), ("repeated", "ggn", 4)],
    ids=["flat mixtures", "flat labels", "not divided"],
)
def test_control_other_labels_or_other_lengths_are_noticed(likelihood, curvature, labels):
    assert distance(likelihood, labels, curvature, truth="classification") > BOUND


def variance(curvature: str, labels: int) -> float:
    return float(sums("classification", labels, curvature).var(0).sum())


def test_more_mixtures_have_less_variance():
    """Of independent draws a quarter; a third is between that and none less."""
    assert variance("ggn", 4) < variance("ggn", 1) / 3


def test_a_mixture_of_labels_has_less_variance_than_a_drawn_label():
    """The length of its gradient does not depend on which label was drawn."""
    assert variance("ggn", 1) < variance("fisher", 1) / 2


def test_of_two_classes_one_mixture_is_exact():
    """H has rank one there, so the sign is all that is drawn."""
    torch.manual_seed(0)
    model, inputs = torch.nn.Linear(3, 2).double(), 3 * torch.randn(9, 3).double()
    settings = {"budget": 8 * 8, "solver": Stream(oversampling=8), "sketch": "identity"}
    score = paper_slu(model, "classification", **settings).fit(inputs)
    torch.testing.assert_close(dense(score.state.subspace), oracles.ggn(model, inputs, "classification"))
