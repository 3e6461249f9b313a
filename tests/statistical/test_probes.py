"""Probes are unbiased for the trace, and their standard error covers it."""

import pytest
import torch

from oracles import network
from shorthand import paper_slu
from slu import Probes, Stream

SEEDS = range(60)
POINTS = 12


def drawn(likelihood, reading, count, seeds=SEEDS):
    """By probes of many seeds, (seeds, points) scores and standard errors; and the exact (points,) scores."""
    model, inputs = network("mlp", outputs=12)
    queries = 1.5 * inputs + 0.3
    solver = Stream(labels_per_point="all", oversampling=2000)
    score = paper_slu(model, likelihood, rank=4, sketch="identity", solver=solver).fit(inputs)
    scores, errors = [], []
    for seed in seeds:
        object.__setattr__(score.readout, "seed", seed)  # another fit would have the same subspace
        values, error = score(queries, reading=reading, outputs=Probes(count), return_error=True)
        scores.append(values)
        errors.append(error)
    return torch.stack(scores), torch.stack(errors), score(queries, reading=reading, outputs="all")


@pytest.mark.parametrize("likelihood", ["classification", "regression", "multilabel"])
@pytest.mark.parametrize("reading", ["variance", "fisher"])
def test_they_are_unbiased(likelihood, reading):
    scores, _, exact = drawn(likelihood, reading, 2)
    # The mean over seeds has a standard error of its own; beyond 4.5 of it is one case in 10⁵ of 12 points each.
    spread = scores.std(0) / len(SEEDS) ** 0.5
    assert bool(((scores.mean(0) - exact).abs() < 4.5 * spread).all())
    assert float((spread / exact).max()) < 0.1
    # The controls: without the division by the number of probes, and with the leading direction alone, it is noticed.
    for wrong in (2 * scores, 0 * scores + 0.8 * exact):
        assert bool(((wrong.mean(0) - exact).abs() > 4.5 * spread).any())


@pytest.mark.parametrize("likelihood", ["classification", "regression", "multilabel"])
@pytest.mark.parametrize("reading", ["variance", "relative", "fisher", "fisher-relative"])
def test_the_standard_error_covers(likelihood, reading):
    """With 24 probes: of 720 cases, Student's t with 23 degrees of freedom has 94.3 % within two standard errors.

    The cases of one point are independent, their squares skewed, so 90 to 99 % are allowed.
    """
    scores, errors, exact = drawn(likelihood, reading, 24)
    covered = ((scores - exact).abs() <= 2 * errors).double().mean()
    assert 0.90 <= float(covered) <= 0.99
    # As large as the spread over seeds, on average over the points.
    assert float(errors.square().mean(0).sum().sqrt() / scores.var(0).sum().sqrt()) == pytest.approx(1, abs=0.1)
    # The controls: errors that forget the number of probes, or divide by it twice.
    for factor in (24**0.5, 24**-0.5):
        share = float(((scores - exact).abs() <= 2 * factor * errors).double().mean())
        assert not 0.90 <= share <= 0.99


def test_the_error_of_a_sum_is_the_spread_of_its_terms():
    """With the plain difference a score is a sum over probes: the jackknife is the textbook's formula."""
    model, inputs = network("conv")
    settings = {"rank": 4, "sketch": "identity", "estimator": "difference"}
    score = paper_slu(model, "classification", **settings).fit(inputs)
    values, error = score(inputs, reading="fisher", outputs=Probes(6), return_error=True)
    batch = next(iter(_batches(score, inputs)))
    with score.settings.network.evaluating():
        _, measured = score.readout.measure(batch, {Probes(6): {"fisher"}}, per_output=True)
    terms = 6 * measured[Probes(6)].open("fisher")
    torch.testing.assert_close(terms.mean(1), values)
    torch.testing.assert_close(error, terms.std(1) / 6**0.5, rtol=1e-9, atol=0)


def _batches(score, inputs):
    from slu.data import batches

    return batches(inputs, score.settings.network.selection.device)
