"""AUROC, AUPR and FPR95 against hand-computed cases and brute force."""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slu.comparing import Detection, detect
from slu.errors import DataError, SluError, require

SCORES = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


def test_by_hand():
    # In falling order: 0.9 outside, 0.3 inside, 0.25 outside, 0.2 inside, 0.1 inside.
    detection = detect(inside=[0.1, 0.2, 0.3], outside=[0.25, 0.9])
    assert detection.auroc == pytest.approx((3 + 2) / 6)
    assert detection.aupr == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert detection.fpr95 == pytest.approx(1 / 3)


def test_perfect_and_reversed():
    assert detect([0.0, 1.0], [2.0, 3.0]) == Detection(auroc=1.0, aupr=1.0, fpr95=0.0)
    detection = detect([2.0, 3.0], [0.0, 1.0])
    assert (detection.auroc, detection.fpr95) == (0.0, 1.0)
    assert detection.aupr == pytest.approx((1 / 3 + 2 / 4) / 2)


def test_ties_by_hand():
    # 2 outside; then 1 twice outside and once inside together; then 0 inside.
    detection = detect(inside=[0.0, 1.0], outside=[1.0, 1.0, 2.0])
    assert detection.auroc == pytest.approx((2 + 1.5 + 1.5) / 6)
    assert detection.aupr == pytest.approx(1 / 3 * 1 + 2 / 3 * 3 / 4)
    assert detection.fpr95 == pytest.approx(1 / 2)


def test_a_constant_score_is_guessing():
    detection = detect(inside=[1.0] * 6, outside=[1.0] * 2)
    assert detection == Detection(auroc=0.5, aupr=0.25, fpr95=1.0)


@pytest.mark.parametrize(("count", "missed"), [(1, 0), (19, 0), (20, 1), (40, 2), (100, 5), (140, 7)])
def test_fpr95_flags_just_95_percent(count, missed):
    outside = np.arange(count) + 0.5
    inside = np.arange(count).astype(float)
    # The threshold is the smallest outside score above those that may be missed.
    assert detect(inside, outside).fpr95 == pytest.approx(np.mean(inside >= missed + 0.5))


@given(SCORES, SCORES)
def test_against_brute_force(inside, outside):
    detection = detect(inside, outside)
    wins = [(o > i) + 0.5 * (o == i) for i in inside for o in outside]
    assert detection.auroc == pytest.approx(np.mean(wins))
    assert detect(outside, inside).auroc == pytest.approx(1 - detection.auroc)
    allowed = [t for t in outside if np.mean(np.array(outside) >= t) >= 0.95]
    assert detection.fpr95 == pytest.approx(np.mean(np.array(inside) >= max(allowed)))


@given(SCORES, SCORES)
def test_only_the_order_matters(inside, outside):
    one = detect(inside, outside)
    two = detect([math.exp(i) for i in reversed(inside)], [math.exp(o) for o in outside])
    assert two.auroc == pytest.approx(one.auroc)
    assert two.aupr == pytest.approx(one.aupr)
    assert two.fpr95 == one.fpr95


def test_tensors_infinities_and_tiny_differences():
    inside = torch.tensor([1.0, 1.0 + 1e-12], dtype=torch.float64, requires_grad=True)
    assert detect(inside, torch.tensor([math.inf, 1.1])).auroc == 1.0
    assert detect(inside[:1], inside[1:]).auroc == 1.0
    assert detect(torch.tensor([-math.inf]), np.array([0], dtype=np.int64)).auroc == 1.0


@pytest.mark.parametrize(
    ("inside", "outside", "message"),
    [
        ([0.0, math.nan, math.nan], [1.0], r"2 of the 3 inside scores are NaN, the first at position 1"),
        ([0.0], torch.tensor([1.0, math.nan]), r"1 of the 2 outside scores are NaN"),
        ([], [1.0], r"inside scores must be one number per point.*got shape \(0,\)"),
        ([0.0], torch.zeros(3, 2), r"outside scores must be.*got shape \(3, 2\)"),
    ],
)
def test_what_cannot_be_judged_is_refused(inside, outside, message):
    with pytest.raises(DataError, match=message):
        detect(inside, outside)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(SluError, match=r"judging a score needs the package 'sklearn'.*pip install 'slu\[demo\]'"):
        detect([0.0], [1.0])


def test_a_broken_package_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "broken_package.py").write_text("import something_else_that_is_missing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="something_else") as caught:
        require("broken_package", "this test")
    assert not isinstance(caught.value, SluError)
