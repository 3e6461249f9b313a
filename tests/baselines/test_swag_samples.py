"""The networks that SWAG draws: their distribution, their BatchNorm statistics, and what they say together."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from descents import SIZES, Noisy, by_hand, problem
from shorthand import split
from slu.baselines.swag.moments import Moments
from slu.baselines.swag.swag import SWAG
from slu.parameters import select


def tiny_moments(rank, seed):
    draw = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).double()
    mean, spread = torch.randn(2, 13, generator=draw, dtype=torch.float64)
    deviations = torch.randn(rank, 13, generator=draw, dtype=torch.float64)
    return select(model), Moments(mean, spread.square(), deviations)


def farthest(samples, mean, covariance):
    """The largest distance of empirical mean and covariance from these, in their standard errors."""
    count = len(samples)
    of_mean = (samples.mean(0) - mean) / (covariance.diag() / count).sqrt()
    distances = torch.einsum("ni,nj->ij", samples - mean, samples - mean) / count
    error = ((covariance.diag()[:, None] * covariance.diag() + covariance.square()) / count).sqrt()
    return max(float(of_mean.abs().max()), float(((distances - covariance) / error).abs().max()))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("rank", [2, 3])
def test_samples_have_the_mean_and_distancesof_the_formula(seed, rank):
    """Of 104 numbers, each about normal, none is five standard errors off but once in 17,000 times."""
    selection, moments = tiny_moments(rank, seed)
    samples = torch.stack([selection.flatten(moments.sample(selection, seed, i)) for i in range(2000)])
    low_rank = moments.deviations.T @ moments.deviations
    covariance = moments.variance.diag() / 2 + low_rank / (2 * (rank - 1))
    assert farthest(samples, moments.mean, covariance) < 5
    # Controls: k for k - 1, no low-rank part, the whole diagonal, another mean.
    wrong = [moments.variance.diag() / 2 + low_rank / (2 * rank), moments.variance.diag() / 2]
    wrong.append(moments.variance.diag() + low_rank / (2 * (rank - 1)))
    for each in wrong:
        assert farthest(samples, moments.mean, each) > 5
    assert farthest(samples, moments.mean + 0.2, covariance) > 5


@pytest.mark.parametrize("seed", [0, 1])
def test_rank_1_is_the_diagonal_alone(seed):
    selection, moments = tiny_moments(0, seed)
    samples = torch.stack([selection.flatten(moments.sample(selection, seed, i)) for i in range(2000)])
    assert farthest(samples, moments.mean, moments.variance.diag()) < 5
    assert farthest(samples, moments.mean, moments.variance.diag() / 2) > 5
    model, inputs, data = problem()
    score = SWAG(model, "classification", rank=1, samples=3, seed=seed).fit(data)
    assert score.moments.deviations.shape == (0, 51)
    assert bool((score(inputs) > 0).all())


def test_samples_can_be_made_again_one_by_one():
    selection, moments = tiny_moments(3, 0)
    first, again, other = (selection.flatten(moments.sample(selection, 0, i)) for i in (7, 7, 8))
    assert torch.equal(first, again) and not torch.isclose(first, other).any()
    assert not torch.isclose(first, selection.flatten(moments.sample(selection, 1, 7))).any()


def stacked_outputs(model, score, inputs, statistics=None):
    """(m, b, t): every sampled network put into a module and called."""
    collected = []
    for index in range(score.method.samples):
        drawn = copy.deepcopy(model).eval()
        values = score.sample(index)
        with torch.no_grad():
            for name, parameter in drawn.named_parameters():
                parameter.copy_(values.get(name, parameter))
            for name, buffer in drawn.named_buffers():
                if statistics and name in statistics[index]:
                    buffer.copy_(statistics[index][name])
            collected.append(drawn(inputs))
    return torch.stack(collected)


@pytest.mark.parametrize("kind", ["mlp", "tied", "encoder"])
def test_score_is_the_variance_of_the_sampled_networks(kind):
    model, inputs, data = problem(kind)
    score = SWAG(model, "classification", rank=3, samples=6, learning_rate=0.05).fit(data)
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        outputs = stacked_outputs(model, score, inputs).numpy()
    expected = np.var(outputs, axis=0)
    np.testing.assert_allclose(score(inputs, per_output=True), expected, rtol=1e-8)
    np.testing.assert_allclose(score(inputs), expected.sum(1), rtol=1e-8)
    for sizes in (SIZES, [11, 1]):
        for reading in score.readings:
            whole = score(inputs, reading=reading)
            torch.testing.assert_close(score(split(inputs, sizes=sizes), reading=reading), whole, rtol=1e-9, atol=0)


def refitted_by_hand(model, score, batches):
    """BatchNorm's averages over batches for each sample, all else in eval mode."""
    collected = []
    for index in range(score.method.samples):
        drawn = copy.deepcopy(model).eval()
        with torch.no_grad():
            for name, parameter in drawn.named_parameters():
                parameter.copy_(score.sample(index)[name])
            norms = {name: module for name, module in drawn.named_modules() if "BatchNorm" in type(module).__name__}
            inside = {name: [] for name in norms}
            for name, module in norms.items():
                module.train().register_forward_pre_hook(lambda _, args, seen=inside[name]: seen.append(args[0]))
            for inputs, _ in batches:
                drawn(inputs)
        statistics = {}
        for name, seen in inside.items():
            flat = [each.transpose(0, 1).flatten(1) for each in seen]  # (channels, values)
            statistics[f"{name}.running_mean"] = torch.stack([each.mean(1) for each in flat]).mean(0)
            statistics[f"{name}.running_var"] = torch.stack([each.var(1) for each in flat]).mean(0)
        collected.append(statistics)
    return collected


@pytest.mark.parametrize("kind", ["noisy", "conv"])
@pytest.mark.parametrize("most", [None, 2])
def test_batchnorm_is_refitted_for_every_sample(kind, most):
    model, inputs, data = problem(kind)
    settings = {"rank": 3, "samples": 4, "learning_rate": 0.05}
    score = SWAG(model, "classification", batchnorm_batches=most, **settings).fit(data)
    statistics = refitted_by_hand(model, score, data[:most])
    assert set(score.statistics) == set(statistics[0])
    for index, each in enumerate(statistics):
        for name, value in each.items():
            torch.testing.assert_close(score.statistics[name][index], value, rtol=1e-10, atol=1e-12)
    expected = np.var(stacked_outputs(model, score, inputs, statistics).numpy(), axis=0)
    np.testing.assert_allclose(score(inputs, per_output=True), expected, rtol=1e-8)
    # The control: with the statistics of the trained network it is another score.
    stale = np.var(stacked_outputs(model, score, inputs).numpy(), axis=0)
    assert np.abs(stale / expected - 1).max() > 0.01


@pytest.mark.parametrize("kind", ["noisy", "conv"])
def test_batchnorm_that_is_not_refitted_is_what_sgd_left(kind):
    model, inputs, data = problem(kind)
    settings = {"collections": 3, "learning_rate": 0.05, "momentum": 0.99}
    score = SWAG(model, "classification", rank=3, samples=4, refit_batchnorm=False, **settings).fit(data)
    _, left = by_hand(model, data, "classification", settings)
    buffers = dict(left.named_buffers())
    for name, value in score.statistics.items():
        torch.testing.assert_close(value, buffers[name][None], rtol=1e-9, atol=1e-12)
    expected = np.var(stacked_outputs(model, score, inputs, [buffers] * 4).numpy(), axis=0)
    np.testing.assert_allclose(score(inputs, per_output=True), expected, rtol=1e-8)


class Drifting(Noisy):
    """Has a buffer that every batch in training mode changes, and that counts."""

    def __init__(self):
        super().__init__()
        self.register_buffer("gain", torch.ones(()))

    def forward(self, inputs):
        if self.training:
            self.gain *= 1.1
        return super().forward(self.gain * inputs)


def test_batchnorm_is_refitted_with_the_buffers_of_a_query():
    _, _, data = problem("noisy")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Drifting().double()
    score = SWAG(model, "classification", rank=2, samples=2, learning_rate=0.05).fit(data)
    assert float(model.gain) == 1
    for index, each in enumerate(refitted_by_hand(model, score, data)):
        for name, value in each.items():
            torch.testing.assert_close(score.statistics[name][index], value, rtol=1e-10, atol=1e-12)


def test_networks_without_batchnorm_are_read_no_further():
    model, _, data = problem("mlp")

    class Counting(list):
        passes = 0

        def __iter__(self):
            self.passes += 1
            return super().__iter__()

    counted = Counting(data)
    method = SWAG(model, "classification", rank=2, samples=5, collections=4)
    assert method.fit(counted).statistics == {}
    assert counted.passes == method.cost().passes == 4
    model, _, data = problem("noisy")
    counted = Counting(data)
    method = SWAG(model, "classification", rank=2, samples=5, collections=4)
    method.fit(counted)
    assert counted.passes == method.cost().passes == 9
