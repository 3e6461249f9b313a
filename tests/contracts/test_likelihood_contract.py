"""What every likelihood promises, those of the table and a user's own alike."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.func import grad, jacrev, vmap

from oracles import targets_for
from slu.likelihoods import Classification, Likelihood, Multilabel, Regression, resolve


class Poisson:
    """A user's own likelihood: counts with the logarithm of the rate as output."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.exp() - targets * outputs).sum(1)

    def hessian_product(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        return outputs.exp() * vectors

    def factor_product(self, outputs: Tensor, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        return (outputs / 2).exp() * vectors

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        return torch.as_tensor(stats.poisson.ppf(uniform.numpy(), outputs.exp().numpy())).to(outputs)


CASES = {
    "classification": (Classification(), "classification"),
    "regression": (Regression(), "regression"),
    "noisy regression": (Regression(noise_variance=0.3), "regression"),
    "multilabel": (Multilabel(), "multilabel"),
    "weighted multilabel": (Multilabel(weights=[0.2, 1.0, 3.0]), "multilabel"),
    "user's own": (Poisson(), "multilabel"),
}

# Sums of three float64 numbers of order one: rounding is below 1e-15, wrong formulas far above 1e-12.
EXACT = 1e-12


@pytest.fixture(params=CASES, ids=str)
def case(request) -> tuple[Likelihood, str]:
    return CASES[request.param]


@pytest.fixture
def likelihood(case) -> Likelihood:
    return case[0]


def drawn_outputs(points: int = 5, seed: int = 0, scale: float = 2.0, outputs: int = 3) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return scale * torch.randn(points, outputs, generator=draw, dtype=torch.float64)


def columns(outputs: Tensor) -> Tensor:
    """Unit vectors (t, b, t), so that a product gives matrices of all points at once."""
    return torch.eye(outputs.shape[1], dtype=outputs.dtype)[:, None].expand(-1, len(outputs), -1)


def dense_hessian(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """H (b, t, t)."""
    return likelihood.hessian_product(outputs, columns(outputs)).permute(1, 2, 0)


def dense_factor(likelihood: Likelihood, outputs: Tensor, transpose: bool = False) -> Tensor:
    """L (b, t, t), or its transpose."""
    return likelihood.factor_product(outputs, columns(outputs), transpose=transpose).permute(1, 2, 0)


def test_it_is_a_likelihood_and_passes_as_it_is(likelihood):
    assert isinstance(likelihood, Likelihood)
    assert resolve(likelihood) is likelihood


def test_loss_is_one_number_a_point(case):
    likelihood, kind = case
    outputs = drawn_outputs()
    targets = targets_for(kind, points=5)
    losses = likelihood.loss(outputs, targets)
    assert losses.shape == (5,)
    alone = [likelihood.loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(5)]
    torch.testing.assert_close(losses, torch.cat(alone), rtol=EXACT, atol=0)


@pytest.mark.parametrize("seed", [0, 1])
def test_hessian_product_is_the_hessian_of_the_loss_whatever_the_target(case, seed):
    likelihood, kind = case
    outputs = drawn_outputs(seed=seed)
    targets = targets_for(kind, points=5, seed=seed)
    expected = [
        jacrev(jacrev(lambda f, y=targets[i : i + 1]: likelihood.loss(f[None], y)[0]))(outputs[i])
        for i in range(len(outputs))
    ]
    torch.testing.assert_close(dense_hessian(likelihood, outputs), torch.stack(expected), rtol=EXACT, atol=EXACT)


def test_factor_times_its_transpose_is_the_hessian(likelihood):
    outputs = drawn_outputs()
    factor = dense_factor(likelihood, outputs)
    torch.testing.assert_close(
        factor @ factor.transpose(1, 2), dense_hessian(likelihood, outputs), rtol=EXACT, atol=EXACT
    )


def test_transpose_is_the_adjoint_of_the_factor(likelihood):
    outputs = drawn_outputs()
    adjoint = dense_factor(likelihood, outputs, transpose=True)
    torch.testing.assert_close(adjoint, dense_factor(likelihood, outputs).transpose(1, 2), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("leading", [(), (1,), (4,), (2, 3)])
def test_leading_dimensions_are_carried_along(likelihood, leading):
    outputs = drawn_outputs()
    draw = torch.Generator().manual_seed(1)
    vectors = torch.randn(*leading, *outputs.shape, generator=draw, dtype=torch.float64)
    matrices = {
        "hessian": (likelihood.hessian_product(outputs, vectors), dense_hessian(likelihood, outputs)),
        "factor": (likelihood.factor_product(outputs, vectors), dense_factor(likelihood, outputs)),
        "adjoint": (
            likelihood.factor_product(outputs, vectors, transpose=True),
            dense_factor(likelihood, outputs).transpose(1, 2),
        ),
    }
    for found, matrix in matrices.values():
        assert found.shape == vectors.shape
        torch.testing.assert_close(found, torch.einsum("bij,...bj->...bi", matrix, vectors), rtol=EXACT, atol=EXACT)


numbers = st.floats(-30, 30, allow_nan=False, width=32)
rows = st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(values=rows)
@pytest.mark.parametrize("name", CASES)
def test_hessian_is_symmetric_and_has_no_negative_eigenvalue(name, values):
    likelihood, _ = CASES[name]
    matrix = dense_hessian(likelihood, torch.tensor(values, dtype=torch.float64))
    size = matrix.abs().amax((1, 2), keepdim=True)
    # An eigenvalue solver's rounding is a few ε of the largest entry.
    assert ((matrix - matrix.transpose(1, 2)).abs() <= 1e-14 * size).all()
    assert (torch.linalg.eigvalsh(matrix) >= -1e-13 * size[:, 0]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_stay_in_the_type_of_the_outputs(likelihood, dtype):
    outputs = drawn_outputs().to(dtype)
    assert likelihood.hessian_product(outputs, outputs).dtype == dtype
    assert likelihood.factor_product(outputs, outputs).dtype == dtype


def _distance_in_standard_errors(case, bend: float) -> float:
    """How far the mean of g gᵀ at sampled targets lies from H, at its worst entry and point.

    `bend` other than 1 makes the uniform numbers uneven: the control.
    """
    likelihood, _ = case
    repeats = 20_000
    draw = torch.Generator().manual_seed(20_240)
    worst = 0.0
    for outputs in drawn_outputs(points=3, scale=1.0):
        many = outputs.expand(repeats, -1)
        uniform = torch.rand(repeats, len(outputs), generator=draw, dtype=torch.float64).clamp(min=1e-12) ** bend
        targets = likelihood.sample(many, uniform)
        gradient = vmap(grad(lambda f, y: _plain_loss(likelihood, f, y)))(many, targets)
        products = gradient[:, :, None] * gradient[:, None, :]
        error = (products.mean(0) - dense_hessian(likelihood, outputs[None])[0]).abs()
        worst = max(worst, float((error / (products.std(0) / repeats**0.5)).max()))
    return worst


def _plain_loss(likelihood: Likelihood, outputs: Tensor, target: Tensor) -> Tensor:
    if isinstance(likelihood, Classification):  # its check of the labels cannot pass vmap
        return -outputs.log_softmax(0).gather(0, target[None])[0]
    return likelihood.loss(outputs[None], target[None])[0]


# 27 entries in each of six cases: five standard errors are passed by chance once in 10,000 runs of new seeds.
CHANCE = 5.0


def test_gradients_at_sampled_targets_have_the_hessian_as_mean_outer_product(case):
    assert _distance_in_standard_errors(case, bend=1.0) < CHANCE


def test_control_uneven_uniform_numbers_are_noticed(case):
    assert _distance_in_standard_errors(case, bend=1.3) > CHANCE


def test_a_point_gets_the_same_target_in_any_batch(likelihood):
    outputs = drawn_outputs(points=6)
    uniform = torch.rand(6, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    together = likelihood.sample(outputs, uniform)
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    assert torch.equal(likelihood.sample(outputs[order], uniform[order]), together[order])
    assert torch.equal(likelihood.sample(outputs[2:3], uniform[2:3]), together[2:3])


def test_sampled_targets_are_targets_the_loss_takes(likelihood):
    outputs = drawn_outputs(points=6)
    uniform = torch.rand(6, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    assert likelihood.loss(outputs, likelihood.sample(outputs, uniform)).isfinite().all()
