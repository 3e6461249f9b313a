"""Entropies of predictions, against exact rational and high-precision arithmetic, however confident the network is."""

from decimal import Decimal, getcontext

import pytest
import torch

from slu.errors import DataError
from slu.likelihoods import Classification, Multilabel, Regression

getcontext().prec = 320
GAPS = (0.0, 0.3, 5.0, 30.0, 200.0, 600.0)


def exact(logits):
    """-Σ π ln π of the softmax, in 320 digits."""
    powers = [Decimal(value).exp() for value in logits]
    total = sum(powers)
    return float(-sum(power / total * (power / total).ln() for power in powers))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", GAPS)
def test_of_classes(gap, dtype):
    logits = torch.tensor([[gap, 0.0, -1.5], [-1.5, gap, -0.25], [gap + 700, 700.0, 698.5]], dtype=dtype)
    entropies = Classification().entropy(logits)
    assert entropies.dtype == torch.float64
    expected = [exact(row) for row in logits.tolist()]
    assert entropies.tolist() == pytest.approx(expected, rel=1e-11, abs=0)
    assert all(value > 0 for value in expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", GAPS)
def test_of_labels_they_add_up(gap, dtype):
    logits = torch.tensor([[gap, -gap, 0.5], [-gap, gap, gap]], dtype=dtype)
    entropies = Multilabel().entropy(logits)
    assert entropies.dtype == torch.float64
    expected = [sum(exact([value, 0.0]) for value in row) for row in logits.tolist()]
    assert entropies.tolist() == pytest.approx(expected, rel=1e-12, abs=0)
    # Weights say how much a label counts in the loss, not how unsure it is.
    assert torch.equal(Multilabel(weights=torch.tensor([1.0, 2.0, 3.0])).entropy(logits), entropies)


def test_control_the_plain_formula_loses_confident_outputs():
    logits = torch.tensor([[30.0, 0.0, -1.5]], dtype=torch.float64)
    logs = logits.log_softmax(1)
    assert float(-(logs.exp() * logs).sum()) != pytest.approx(exact(logits[0].tolist()), rel=1e-6, abs=0)


def test_it_is_largest_where_all_are_alike_and_a_shift_does_not_matter():
    even = torch.zeros(1, 7, dtype=torch.float64)
    assert float(Classification().entropy(even)) == pytest.approx(float(torch.tensor(7.0).double().log()), rel=1e-12)
    logits = torch.randn(20, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    entropies = Classification().entropy(logits)
    assert bool((entropies < Classification().entropy(even)).all())
    torch.testing.assert_close(Classification().entropy(logits + 100), entropies, rtol=1e-11, atol=0)


def test_beyond_underflow_it_is_zero_and_not_nan():
    assert float(Classification().entropy(torch.tensor([[1e5, 0.0]]))) == 0.0
    assert float(Multilabel().entropy(torch.tensor([[1e5, -1e5]]))) == 0.0


def test_one_output_has_no_classes_and_a_regression_no_entropy():
    with pytest.raises(DataError, match="at least two outputs"):
        Classification().entropy(torch.zeros(3, 1))
    assert not hasattr(Regression(), "entropy")
