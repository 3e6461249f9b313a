"""Readings of a stack of predictions against the textbook formulas, and where those formulas cancel."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from slu.baselines.predictions import (
    PROBABILITIES,
    READINGS,
    MeanEntropy,
    MutualInformation,
    Variance,
    entropy,
    readings_of,
    rest,
    sigmoids,
    softmax,
)
from slu.errors import DataError
from slu.likelihoods import Classification, Multilabel, Regression

SHAPES = [(2, 1, 2), (3, 7, 5), (11, 4, 10)]  # members, points, outputs


def stack(members, points, outputs, scale=3.0, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return scale * torch.randn(members, points, outputs, generator=draw, dtype=torch.float64)


def read(reading, outputs):
    for member in outputs:
        reading.add(member)
    return reading.value()


@pytest.mark.parametrize("shape", SHAPES)
def test_variance_is_numpys(shape):
    outputs = stack(*shape)
    np.testing.assert_allclose(read(Variance(), outputs), np.var(outputs.numpy(), axis=0), rtol=1e-12)


def test_variance_far_from_zero():
    """Outputs of a billion with a spread of one; the control is the formula that cancels."""
    outputs = stack(9, 5, 3, scale=1.0) + 1e9
    np.testing.assert_allclose(read(Variance(), outputs), np.var(outputs.numpy(), axis=0), rtol=1e-6)
    plain = (outputs**2).mean(0) - outputs.mean(0) ** 2
    assert float((plain - outputs.var(0, correction=0)).abs().max()) > 1.0


@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_readings_are_scipys(shape):
    outputs = stack(*shape)
    probability = special.softmax(outputs.numpy(), axis=-1)
    total = stats.entropy(probability.mean(0), axis=-1)
    expected = total - stats.entropy(probability, axis=-1).mean(0)
    np.testing.assert_allclose(read(MutualInformation(softmax), outputs)[:, 0], expected, rtol=1e-11)
    np.testing.assert_allclose(read(MeanEntropy(softmax), outputs)[:, 0], total, rtol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_sigmoid_readings_are_scipys_summed_over_labels(shape):
    outputs = stack(*shape)
    probability = np.stack([special.expit(outputs.numpy()), special.expit(-outputs.numpy())], -1)
    total = stats.entropy(probability.mean(0), axis=-1)
    expected = total - stats.entropy(probability, axis=-1).mean(0)
    np.testing.assert_allclose(read(MutualInformation(sigmoids), outputs), expected, rtol=1e-11)
    np.testing.assert_allclose(read(MeanEntropy(sigmoids), outputs), total, rtol=1e-12)


@pytest.mark.parametrize("members", [2, 3, 7, 50])
def test_equal_members_are_exactly_zero_apart(members):
    """Confident, undecided and huge outputs; sums of thirds and sevenths would not come out even."""
    one = torch.cat([stack(1, 40, 6, scale)[0] for scale in (0.1, 10.0, 300.0)])
    outputs = one.expand(members, -1, -1)
    assert bool((read(Variance(), outputs) == 0).all())
    for probabilities in PROBABILITIES.values():
        assert bool((read(MutualInformation(probabilities), outputs) == 0).all())
    # The control: one member a little off, and none of it is zero.
    other = [*outputs[1:], one + 0.01 * stack(1, 120, 6, 1.0, seed=1)[0]]
    assert bool((read(Variance(), other) > 0).all())
    assert bool((read(MutualInformation(sigmoids), other).sum(1) > 0).all())


@pytest.mark.parametrize("distance", [1e-4, 1e-6, 1e-8])
def test_mutual_information_of_members_that_hardly_differ(distance):
    """To second order it is Σ var(π)/(2 π̄). The control is the difference of entropies, which is lost to rounding."""
    outputs = stack(1, 6, 4, 1.0) + distance * stack(5, 6, 4, 1.0, seed=1)
    probability = softmax(outputs.reshape(30, 4))[:, 0].reshape(5, 6, 4)
    expected = (probability.var(0, correction=0) / (2 * probability.mean(0))).sum(-1)
    information = read(MutualInformation(softmax), outputs)[:, 0]
    bound = 20 * (distance + 1e-16 / distance)  # the next order, and the rounding of probabilities
    assert float((information / expected - 1).abs().max()) < bound
    plain = entropy(probability.mean(0)) - entropy(probability).mean(0)
    if distance <= 1e-8:
        assert float((plain / expected - 1).abs().max()) > 1


@pytest.mark.parametrize("lead", [0.0, 1.0, 20.0, 40.0, 100.0, 700.0])
def test_entropy_and_rest_of_a_confident_network(lead):
    """Two classes in closed form. The control: the usual formula is off by one part in lead once π rounds to 1."""
    outputs = torch.tensor([[lead, 0.0]], dtype=torch.float64)
    other = math.exp(-lead) / (1 + math.exp(-lead))
    assert float(rest(softmax(outputs))) == pytest.approx(other, rel=1e-13, abs=0)
    expected = (1 - other) * math.log1p(math.exp(-lead)) + other * (lead + math.log1p(math.exp(-lead)))
    assert float(entropy(softmax(outputs))) == pytest.approx(expected, rel=1e-12, abs=0)
    if lead >= 40:
        plain = float(torch.special.entr(outputs.softmax(1)).sum())
        assert plain != pytest.approx(expected, rel=1e-3, abs=0)


def test_entropy_of_many_classes():
    even = torch.zeros(1, 20_000, dtype=torch.float64)
    assert float(entropy(softmax(even))) == pytest.approx(math.log(20_000), rel=1e-12)


def test_probabilities_of_zero():
    """Answers that no member gives, and answers that one gives for certain and another not at all."""
    outputs = torch.tensor([[[2000.0, 0.0, -2000.0]], [[0.0, 2000.0, -2000.0]]], dtype=torch.float64)
    assert float(read(MutualInformation(softmax), outputs)) == pytest.approx(math.log(2), rel=1e-14)
    assert float(read(MeanEntropy(softmax), outputs)) == pytest.approx(math.log(2), rel=1e-14)


@pytest.mark.parametrize("members", [3, 6, 7, 49])
def test_an_answer_that_the_last_member_rules_out(members):
    """Its share of the mean, (m - 1)/m of what it was, may round to either side of that."""
    outputs = stack(members, 200, 4, 1.0)
    outputs[-1, :, 0] = -2000.0
    probability = special.softmax(outputs.numpy(), axis=-1)
    expected = stats.entropy(probability.mean(0), axis=-1) - stats.entropy(probability, axis=-1).mean(0)
    np.testing.assert_allclose(read(MutualInformation(softmax), outputs)[:, 0], expected, rtol=1e-11)


def test_order_of_the_members_does_not_matter():
    outputs = stack(8, 5, 4)
    for make in (Variance, lambda: MutualInformation(softmax), lambda: MeanEntropy(softmax)):
        torch.testing.assert_close(read(make(), outputs.flip(0)), read(make(), outputs), rtol=1e-11, atol=0)


def test_what_came_is_not_changed():
    outputs = stack(3, 4, 5)
    before = outputs.clone()
    for name in READINGS:
        read(READINGS[name](softmax), outputs)
    assert torch.equal(outputs, before)


def test_each_likelihood_has_its_readings():
    class Tempered(Classification):
        """Means other probabilities by its outputs."""

    assert readings_of(Classification()) == readings_of(Multilabel()) == tuple(READINGS)
    assert readings_of(Regression()) == readings_of(Tempered()) == ("variance",)


def test_members_of_different_shapes_and_a_single_output():
    reading = Variance()
    reading.add(torch.zeros(4, 3))
    with pytest.raises(DataError, match=r"member 2 .* \(4, 2\), those before it \(4, 3\)"):
        reading.add(torch.zeros(4, 2))
    with pytest.raises(DataError, match="at least two outputs"):
        MutualInformation(softmax).add(torch.zeros(4, 1))
