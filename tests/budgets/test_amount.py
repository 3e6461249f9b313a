"""Reading budgets, and writing bytes."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slu.budgets import parse, shown
from slu.budgets.amount import UNITS
from slu.errors import BudgetError

P = 44_426


@pytest.mark.parametrize(
    ("budget", "floats"),
    [
        ("3p", 3 * P),
        ("3P", 3 * P),
        (" 3 p ", 3 * P),
        ("0.5p", P // 2),
        (".5p", P // 2),
        ("1e1p", 10 * P),
        ("2GB", 500_000_000),
        ("2 gb", 500_000_000),
        ("1.5KiB", 384),
        ("1e+3 kB", 250_000),
        ("4b", 1),
        (1000, 1000),
        (np.int64(7), 7),
    ],
)
def test_what_can_be_read(budget, floats):
    assert parse(budget, P).floats == floats


def test_bytes_of_a_number_count():
    assert parse("2GB", P, bytes_each=8).floats == 250_000_000
    assert parse("3p", P, bytes_each=8).floats == 3 * P


@pytest.mark.parametrize(
    "budget",
    ["", "p", "3", "3q", "3 p p", "-3p", "nan p", "infp", "1_000p", "2,5GB", "٣p", "1e999p", None, 1.5, True, []],
)
def test_what_cannot_be_read_is_named_with_the_forms(budget):
    with pytest.raises(BudgetError, match=r"cannot read the budget .*'3p' .*'2GB'"):
        parse(budget, P)


@pytest.mark.parametrize("budget", [0, -5, "0p", "3b", "0.00000001p"])
def test_less_than_one_number(budget):
    with pytest.raises(BudgetError, match="at least one is needed"):
        parse(budget, P)


@pytest.mark.parametrize("budget", ["9e99p", "999999999999999999TB", 10**30, pytest.param(10**5000, id="huge")])
def test_beyond_any_memory(budget):
    with pytest.raises(BudgetError, match=r"beyond any memory|cannot read"):
        parse(budget, P)


@given(
    st.decimals(min_value="0.001", max_value=10_000, places=3), st.sampled_from(["p", *UNITS]), st.integers(1, 10**9)
)
def test_the_number_is_exact_but_for_parts(number, unit, parameters):
    wanted = Fraction(number) * (parameters if unit == "p" else Fraction(UNITS[unit], 4))
    if wanted < 1:
        with pytest.raises(BudgetError):
            parse(f"{number}{unit}", parameters)
    else:
        assert parse(f"{number}{unit}", parameters).floats == int(wanted)


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text):
    try:
        assert parse(text, P).floats >= 1
    except BudgetError as error:
        assert "a budget is '3p'" in str(error)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.9, "1 kB"),
        (1000, "1 kB"),
        (15_000_000, "15 MB"),
        (2.5e12, "2.5 TB"),
        (7e15, "7,000 TB"),
    ],
)
def test_bytes_for_people(count, text):
    assert shown(count) == text
