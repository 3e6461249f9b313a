"""Softmax: exact expectation over labels, confident outputs, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slu.errors import DataError
from slu.likelihoods import Classification

# One class far ahead of the others, at several places and by several gaps.
CONFIDENT = torch.tensor(
    [[0.0, 12.0, -3.0, 1.5], [30.0, 0.0, 2.0, -8.0], [-1.0, 0.5, 2.25, 38.0], [9.0, 9.5, -20.0, 8.0]]
)
# ε of float32 is 6e-8; the logits are subtracted exactly, exp and a few products add some ε each.
FLOAT32 = 2e-6


def columns(outputs: Tensor) -> Tensor:
    return torch.eye(outputs.shape[1], dtype=outputs.dtype)[:, None].expand(-1, len(outputs), -1)


def reference(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """H and L (b, t, t) in float64, with 1 - π_i summed from the other classes one by one."""
    prob = outputs.double().softmax(1)
    others = torch.stack([prob[:, [j for j in range(prob.shape[1]) if j != i]].sum(1) for i in range(prob.shape[1])], 1)
    off = 1 - torch.eye(prob.shape[1], dtype=torch.float64)
    hessian = torch.diag_embed(prob * others) - off * prob[:, :, None] * prob[:, None, :]
    factor = torch.zeros_like(hessian)
    for point, of_point in enumerate(prob):
        top = int(of_point.argmax())
        for column in (c for c in range(len(of_point)) if c != top):
            entries = -of_point * of_point[column].sqrt() / (1 + of_point[top].sqrt())
            entries[column] += of_point[column].sqrt()
            entries[top] = -(of_point[top] * of_point[column]).sqrt()
            factor[point, :, column] = entries
    return hessian, factor


def worst_relative_error(actual: Tensor, expected: Tensor) -> float:
    zero = expected == 0
    assert torch.equal(actual[zero], torch.zeros_like(actual[zero]))
    return float(((actual.double() - expected)[~zero] / expected[~zero]).abs().max())


def test_hessian_of_confident_outputs_is_accurate_to_each_entry():
    actual = Classification().hessian_product(CONFIDENT, columns(CONFIDENT)).permute(1, 2, 0)
    assert worst_relative_error(actual, reference(CONFIDENT)[0]) < FLOAT32


def test_control_the_plain_formula_loses_confident_outputs():
    prob = CONFIDENT.softmax(1)
    plain = torch.diag_embed(prob) - prob[:, :, None] * prob[:, None, :]
    assert worst_relative_error(plain, reference(CONFIDENT)[0]) > 1e-2


@pytest.mark.parametrize("transpose", [False, True])
def test_factor_of_confident_outputs_is_accurate_to_each_entry(transpose):
    actual = Classification().factor_product(CONFIDENT, columns(CONFIDENT), transpose=transpose).permute(1, 2, 0)
    expected = reference(CONFIDENT)[1]
    assert worst_relative_error(actual, expected.transpose(1, 2) if transpose else expected) < FLOAT32


def squared(factor: Tensor) -> Tensor:
    return factor.double() @ factor.double().transpose(1, 2)


def test_the_factor_times_itself_is_the_hessian():
    actual = Classification().factor_product(CONFIDENT, columns(CONFIDENT)).permute(1, 2, 0)
    torch.testing.assert_close(squared(reference(CONFIDENT)[1]), reference(CONFIDENT)[0], rtol=1e-12, atol=0)
    assert worst_relative_error(squared(actual), reference(CONFIDENT)[0]) < 2 * FLOAT32


def test_control_the_plain_factor_loses_confident_outputs():
    """The reflection to plus the unit vector of the likeliest class: √π and that vector are nearly equal."""
    root, top = CONFIDENT.softmax(1).sqrt(), torch.nn.functional.one_hot(CONFIDENT.argmax(1), 4).float()
    normal = torch.nn.functional.normalize(root - top, dim=1)
    plain = root[:, :, None] * (torch.eye(4) - 2 * normal[:, :, None] * normal[:, None, :]) * (1 - top)[:, None, :]
    assert worst_relative_error(squared(plain), reference(CONFIDENT)[0]) > 1e-2


def test_equally_likely_classes_have_a_factor_too():
    outputs = torch.zeros(2, 5, dtype=torch.float64)
    actual = Classification().factor_product(outputs, columns(outputs)).permute(1, 2, 0)
    torch.testing.assert_close(squared(actual), torch.eye(5).double().expand(2, 5, 5) / 5 - 1 / 25)


def test_the_transposed_factor_takes_vectors_that_points_share():
    shared = torch.tensor([1.0, -2.0, 0.5, 3.0])
    actual = Classification().factor_product(CONFIDENT, shared, transpose=True)
    torch.testing.assert_close(actual, Classification().factor_product(CONFIDENT, shared.expand(4, 4), transpose=True))


def test_gaps_beyond_underflow_give_zero_and_not_nan():
    outputs = torch.tensor([[0.0, 500.0, -500.0]])
    assert torch.equal(Classification().hessian_product(outputs, torch.ones(1, 3)), torch.zeros(1, 3))
    assert Classification().factor_product(outputs, torch.ones(1, 3)).isfinite().all()


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_expectation_over_all_labels_is_the_hessian(classes):
    draw = torch.Generator().manual_seed(classes)
    outputs = (2 * torch.randn(1, classes, generator=draw, dtype=torch.float64)).requires_grad_()
    total = torch.zeros(classes, classes, dtype=torch.float64)
    for label, chance in enumerate(outputs.detach().softmax(1)[0]):
        (slope,) = torch.autograd.grad(Classification().loss(outputs, torch.tensor([label])).sum(), outputs)
        total += chance * slope[0, :, None] * slope[0, None, :]
    fixed = outputs.detach()
    actual = Classification().hessian_product(fixed, columns(fixed))[:, 0]
    torch.testing.assert_close(actual, total, rtol=1e-12, atol=1e-14)


def test_the_factor_has_as_many_columns_as_the_rank_of_the_hessian():
    factor = Classification().factor_product(CONFIDENT, columns(CONFIDENT)).permute(1, 2, 0)
    assert torch.equal((factor == 0).all(1), torch.nn.functional.one_hot(CONFIDENT.argmax(1), 4).bool())


def test_sampling_inverts_the_cumulative_distribution():
    outputs = torch.tensor([[0.2, 0.3, 0.5]]).log().expand(5, 3)
    uniform = torch.tensor([[1e-12], [0.19], [0.21], [0.51], [1 - 1e-12]]).expand(5, 3)
    assert Classification().sample(outputs, uniform).tolist() == [0, 0, 1, 2, 2]


def test_sampled_label_is_a_class_even_where_rounding_leaves_the_sum_below_one():
    outputs = torch.zeros(200, 49)  # 49 times 1/49 sums to less than 1
    uniform = torch.full((200, 49), 1 - 2.0**-54, dtype=torch.float64)
    assert Classification().sample(outputs, uniform).max() <= 48


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_any_integer_type_is_a_label(dtype):
    losses = Classification().loss(CONFIDENT, torch.tensor([0, 1, 2, 3], dtype=dtype))
    torch.testing.assert_close(losses, -CONFIDENT.log_softmax(1).diagonal(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        (CONFIDENT, torch.zeros(4), r"integer type, got \(4,\) torch.float32"),
        (CONFIDENT, torch.zeros(3, dtype=torch.long), r"shape \(4,\) .*got \(3,\)"),
        (CONFIDENT, torch.zeros(4, 1, dtype=torch.long), r"got \(4, 1\)"),
        (CONFIDENT, torch.tensor([0, 1, 2, 4]), "0 to 3, got 0 to 4"),
        (CONFIDENT, torch.tensor([0, 1, 2, -100]), "0 to 3, got -100 to 2"),
        (CONFIDENT[:, :1], torch.zeros(4, dtype=torch.long), "at least two outputs .*'multilabel'"),
    ],
)
def test_bad_targets_are_refused(outputs, targets, message):
    with pytest.raises(DataError, match=message):
        Classification().loss(outputs, targets)


@pytest.mark.parametrize("method", ["hessian_product", "factor_product", "sample"])
def test_a_single_output_is_refused_everywhere(method):
    with pytest.raises(DataError, match="at least two outputs"):
        getattr(Classification(), method)(CONFIDENT[:, :1], CONFIDENT[:, :1])
