"""The leading directions of H against dense eigendecompositions in float64."""

import numpy as np
import pytest
import torch

from oracles import leading_directions
from slu.likelihoods import Classification, Multilabel, Regression, leading
from slu.likelihoods.classification import _STEPS

SIZES = (2, 3, 10, 100, 1000)


def logits(size, points=12):
    """Flat, peaked, with ties, and sure by tens of logits: by name, float64."""
    draw = torch.Generator().manual_seed(size)
    normal = torch.randn(points, size, generator=draw, dtype=torch.float64)
    ranked = -torch.arange(1.0, size + 1, dtype=torch.float64).expand(points, -1)
    cases = {f"normal times {scale}": scale * normal for scale in (0, 1e-9, 1e-4, 0.01, 0.3, 1, 3, 10, 40)}
    cases |= {f"ranks to the power of {power}": -((-ranked) ** power) for power in (0.2, 0.7, 1.0)}
    cases["rounded, so tied"] = normal.mul(2).round()
    # One class ahead of the second, which is ahead of a crowd: Newton's steps are hardest here.
    for ahead in (0.0, 1e-9, 0.01, 2.0, 9.0):
        for crowd in (1e-6, 0.1, 3.0, 5.0, 8.0):
            case = torch.zeros(1, size, dtype=torch.float64)
            case[:, :2] = torch.tensor([crowd + ahead, crowd])
            cases[f"{ahead} ahead, crowd {crowd} behind"] = case
    return cases


def dense(outputs):
    """diag(π) - ππᵀ with a diagonal that does not cancel: π_i times the sum of the others."""
    probability = outputs.softmax(1)
    hessian = -probability[:, :, None] * probability[:, None, :]
    hessian.diagonal(dim1=1, dim2=2).zero_()
    return hessian + torch.diag_embed(-hessian.sum(2))


@pytest.mark.parametrize("size", SIZES)
def test_of_classes_the_largest_eigenvalue_and_its_vector(size):
    for name, outputs in logits(size).items():
        directions, roots = Classification().leading(outputs, 1)
        hessian = dense(outputs[:3] if size == 1000 else outputs)
        u, root = directions[: len(hessian), 0], roots[: len(hessian), 0]
        value = np.linalg.eigvalsh(hessian.numpy())[:, -1]
        np.testing.assert_allclose(root.square().numpy(), value, rtol=1e-10, err_msg=name)
        # Of an eigenvalue that is nearly double the vector is not unique; that it is one of H is.
        moved = torch.einsum("bij,bj->bi", hessian, u)
        assert float((moved / root.square()[:, None] - u).norm(dim=1).max()) < 1e-9, name
        torch.testing.assert_close(directions.norm(dim=2), torch.ones_like(roots), rtol=1e-12, atol=0)
        assert float(directions.sum(2).abs().max()) < 1e-12 * size, "a shift of all outputs changes nothing"


def test_one_step_less_would_not_do(monkeypatch):
    """Control of the cases above: they tell an unconverged root from the root."""
    monkeypatch.setattr("slu.likelihoods.classification._STEPS", _STEPS - 1)
    worst = 0.0
    for outputs in logits(1000).values():
        value = np.linalg.eigvalsh(dense(outputs[:1]).numpy())[:, -1]
        root = Classification().leading(outputs[:1], 1)[1][:, 0].square().numpy()
        worst = max(worst, float(np.abs(root / value - 1).max()))
    assert worst > 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_low_precision_outputs_it_is_that_of_these_outputs(dtype):
    for name, outputs in logits(10).items():
        low = outputs.to(dtype)
        directions, roots = Classification().leading(low, 1)
        expected, exact = Classification().leading(low.double(), 1)
        assert directions.dtype == dtype
        assert torch.equal(roots, exact) and torch.equal(directions, expected.to(dtype)), name


def test_where_h_underflows_the_direction_is_the_limit():
    outputs = torch.tensor([[900.0, 0.0, -900.0], [3000.0, -5.0, -5.0], [1e30, 0.0, 0.0]], dtype=torch.float64)
    directions, roots = Classification().leading(outputs, 1)
    assert float(roots.max()) < 1e-150 and bool((roots[1:] == 0).all())
    between = torch.tensor([1.0, -1.0, 0.0]).double() / 2**0.5
    torch.testing.assert_close(directions[0, 0], between)
    # Two classes equally far behind: the limit of the leading directions as the first gets surer.
    for shift in (20.0, 60.0):
        near = Classification().leading(torch.tensor([[shift, 0.0, 0.0]]).double(), 1)[0][0, 0]
        torch.testing.assert_close(directions[1, 0], near, rtol=0, atol=10 * np.exp(-shift) + 1e-12)
    for outputs in (torch.zeros(2, 5), torch.tensor([[4.0, 4.0, -200.0]])):
        direction = Classification().leading(outputs, 1)[0]
        assert bool(torch.isfinite(direction).all()) and float(direction.norm(dim=2).sum()) == pytest.approx(
            len(outputs)
        )


@pytest.mark.parametrize("gap", [10.0, 50.0, 100.0, 400.0])
@pytest.mark.parametrize(("size", "count"), [(3, 2), (6, 2), (6, 5), (6, 6)])
def test_several_directions_of_a_sure_network_do_not_move_all_outputs_alike(size, count, gap):
    """All but the first λ are lost in rounding; the constant, which H maps to zero, comes last or not at all."""
    drawn = torch.randn(8, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    outputs = drawn + gap * torch.arange(size, 0, -1)
    directions, roots = Classification().leading(outputs, count)
    proper = directions[:, : size - 1]
    assert float(proper.sum(2).abs().max()) < 1e-9
    unit = torch.eye(count, dtype=torch.float64).expand(8, -1, -1)
    torch.testing.assert_close(directions @ directions.transpose(1, 2), unit, rtol=0, atol=1e-9)
    first, root = Classification().leading(outputs, 1)
    torch.testing.assert_close((first[:, 0] * directions[:, 0]).sum(1).abs(), torch.ones(8).double(), rtol=0, atol=1e-9)
    torch.testing.assert_close(roots[:, :1], root, rtol=1e-6, atol=1e-300)
    if count == size:
        torch.testing.assert_close(directions[:, -1].abs(), torch.full((8, size), size**-0.5).double())


@pytest.mark.parametrize("gap", [690.0, 708.0, 725.0, 744.0, 800.0])
@pytest.mark.parametrize("count", [2, 4, 5])
def test_where_products_underflow_no_direction_is_of_the_constant(count, gap):
    outputs = torch.tensor([[0.0, -gap, -gap - 3, -gap - 30, -gap - 100]], dtype=torch.float64)
    directions, roots = Classification().leading(outputs, count)
    assert float(directions[:, :4].sum(2).abs().max()) < 1e-9
    unit = torch.eye(count, dtype=torch.float64)[None]
    torch.testing.assert_close(directions @ directions.transpose(1, 2), unit, rtol=0, atol=1e-9)
    torch.testing.assert_close(roots[:, :1], Classification().leading(outputs, 1)[1], rtol=0, atol=0)


@pytest.mark.parametrize("likelihood", ["classification", "multilabel", "regression", "own"])
@pytest.mark.parametrize(("size", "count"), [(2, 1), (3, 2), (3, 3), (3, 9), (10, 3), (10, 9), (30, 2)])
def test_several_directions_are_the_leading_ones(likelihood, size, count):
    """The sum of λ u uᵀ is that of the dense directions, exactly or as far as subspace iteration converges."""
    draw = torch.Generator().manual_seed(0)
    outputs = 2 * torch.randn(8, size, generator=draw, dtype=torch.float64)
    kinds = {"classification": Classification(), "multilabel": Multilabel(), "regression": Regression()}
    if likelihood == "own":
        directions, roots = leading(_Tempered(), outputs, count)
        expected, values = leading_directions("classification", outputs / 2, size)
        values = values / 4
    else:
        directions, roots = kinds[likelihood].leading(outputs, count)
        expected, values = leading_directions(likelihood, outputs, size if likelihood != "regression" else count)
    number = min(size, count)
    assert directions.shape == (8, number, size) and roots.shape == (8, number)
    # Four spare vectors and twenty steps: an angle falls like the ratio of these eigenvalues to the power of 20, from
    # at most about t; an eigenvalue like its square.
    iterated = likelihood in ("classification", "own") and count + 4 < size and count > 1
    angle = size * (values[:, count + 4] / values[:, count - 1]) ** 20 if iterated else torch.zeros(8).double()
    values, expected = values[:, :number], expected[:, :number]
    error = (roots.square() - values).abs() / values[:, :1]
    assert bool((error <= 1e-12 + angle.square()[:, None]).all())
    hessian = torch.einsum("bm,bmi,bmj->bij", roots.square(), directions, directions)
    error = (hessian - torch.einsum("bm,bmi,bmj->bij", values, expected, expected)).norm(dim=(1, 2)) / values[:, 0]
    assert bool((error <= 1e-9 + angle).all())
    if likelihood != "regression" or number == size:
        unit = torch.eye(number, dtype=torch.float64).expand(8, -1, -1)
        torch.testing.assert_close(directions @ directions.transpose(1, 2), unit, rtol=0, atol=1e-9)


class _Tempered:
    """A user's own likelihood, with the four methods alone: a softmax of the outputs over a temperature of 2."""

    def loss(self, outputs, targets):
        return torch.nn.functional.cross_entropy(outputs / 2, targets, reduction="none")

    def hessian_product(self, outputs, vectors):
        probability = (outputs / 2).softmax(-1)
        return probability * (vectors - (probability * vectors).sum(-1, keepdim=True)) / 4

    def factor_product(self, outputs, vectors, *, transpose=False):
        return Classification().factor_product(outputs / 2, vectors, transpose=transpose) / 2

    def sample(self, outputs, uniform):
        return Classification().sample(outputs / 2, uniform)


@pytest.mark.parametrize("size", [100, 1000])
def test_nearly_equal_eigenvalues_lose_little(size):
    """Where the gap is too small for twenty steps, the trace of what was taken is still nearly the largest."""
    for scale in (0.01, 0.3, 1.0):
        outputs = scale * torch.randn(4, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        values = leading_directions("classification", outputs, 3)[1]
        for _, roots in (Classification().leading(outputs, 3), leading(Classification(), outputs, 3)):
            assert bool((roots.square().sum(1) <= values.sum(1) * (1 + 1e-9)).all())
            assert bool((roots.square().sum(1) >= 0.97 * values.sum(1)).all())


def test_labels_are_compared_where_their_curvature_underflows():
    directions, roots = Multilabel().leading(torch.tensor([[900.0, -800.0, 1000.0]]), 2)
    assert directions[0].argmax(1).tolist() == [1, 0] and float(roots.max()) < 1e-150
    direction, root = Multilabel([1.0, 1.0, 9.0]).leading(torch.tensor([[0.0, 1.0, 0.5]]), 1)
    chance = 1 / (1 + np.exp(-0.5))
    assert int(direction.argmax()) == 2 and float(root**2) == pytest.approx(9 * chance * (1 - chance), rel=1e-12)


@pytest.mark.parametrize(("size", "count"), [(2, 1), (7, 3), (8, 4), (33, 2), (1000, 1), (1000, 16)])
def test_mixtures_of_a_regression_have_the_diagonal_of_h(size, count):
    outputs = torch.randn(2, size, generator=torch.Generator().manual_seed(0))
    directions, roots = Regression(0.25).leading(outputs, count)
    mixed = torch.einsum("bm,bmi,bmj->bij", roots.square(), directions.double(), directions.double())
    torch.testing.assert_close(mixed.diagonal(dim1=1, dim2=2), torch.full((2, size), 4.0).double(), rtol=1e-6, atol=0)
    inner = (directions[0].double() @ directions[0].double().T).fill_diagonal_(0)
    # Rows repeat with a period of at most 2 · count columns, over which they are orthogonal.
    bound = 0.0 if size % (2 * count) == 0 else 2 * count / size
    assert float(inner.abs().max()) <= bound + 1e-6
    assert torch.equal(directions[0], directions[1])
