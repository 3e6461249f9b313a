"""From a budget to rank and sketch size."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slu.budgets import Fixed, shape_for
from slu.budgets.rule import LEAST_ERROR, MOST_PASSES, TARGET_ERROR
from slu.errors import BudgetError

LENET = 44_426
FLOATS = st.integers(1, 10**10)
PARAMETERS = st.integers(2, 10**9)


def shape_or_none(*arguments):
    try:
        return shape_for(*arguments)
    except BudgetError:
        return None


@given(FLOATS, PARAMETERS)
def test_what_it_promises(floats, p):
    shape = shape_or_none(floats, p)
    if shape is None:
        assert floats < p and floats < 801
        return
    assert 1 <= shape.rank <= min(MOST_PASSES, max(p - 1, 1))
    assert shape.floats <= floats
    assert shape.error <= TARGET_ERROR * 1.0001
    assert shape.exact == (shape.sketch_size == p)


@given(FLOATS, st.integers(0, 10**8), PARAMETERS)
def test_more_memory_is_never_a_lower_rank(floats, more, p):
    less, larger = shape_or_none(floats, p), shape_or_none(floats + more, p)
    assert less is None or (larger is not None and larger.rank >= less.rank)


@given(st.integers(10**5, 10**9), st.integers(10**5, 10**8))
def test_nothing_is_wasted_below_the_caps(floats, p):
    """One rank more would not fit, unless a cap holds it; what is left over is less than one row."""
    shape = shape_for(floats, p)
    if not shape.exact and shape.rank < MOST_PASSES:
        assert (shape.rank + 1) * (shape.rank + 1 + 800) > floats
    if not shape.exact and shape.error > 1.001 * LEAST_ERROR:
        assert floats - shape.floats < shape.rank


def test_a_big_model_gets_neither_a_thousand_passes_nor_an_endless_sketch():
    shape = shape_for(3 * 200_000_000, 200_000_000)
    assert (shape.rank, shape.sketch_size) == (MOST_PASSES, MOST_PASSES + 20_000)


def test_small_models_are_not_sketched():
    shape = shape_for(3 * 500, 500)
    assert (shape.rank, shape.sketch_size, shape.exact, shape.error) == (3, 500, True, 0.0)


@given(FLOATS, PARAMETERS, st.integers(1, 10**4))
def test_never_more_than_the_data_allow(floats, p, data_rank):
    shape = shape_or_none(floats, p, None, data_rank)
    assert shape is None or (shape.rank <= data_rank and shape.floats <= floats)


@pytest.mark.parametrize("floats", [1, 400, 800])
def test_too_small_names_the_smallest(floats):
    with pytest.raises(BudgetError, match=r"smallest that fits is 801 floats \('0\.0181p'\)"):
        shape_for(floats, LENET)
    assert shape_for(801, LENET).rank == 1


def test_too_small_for_a_small_model():
    with pytest.raises(BudgetError, match=r"smallest that fits is 50 floats \('1\.00p'\)"):
        shape_for(49, 50)
    assert shape_for(50, 50).exact


@given(FLOATS, st.integers(1000, 10**8), st.integers(1, 500))
def test_a_given_rank_is_kept_or_refused(floats, p, rank):
    shape = shape_or_none(floats, p, Fixed(rank=rank))
    if shape is None:
        assert rank * min(rank + 800, p) > floats
    else:
        assert shape.rank == rank and shape.floats <= floats and shape.error <= TARGET_ERROR * 1.0001


@given(FLOATS, st.integers(1000, 10**8), st.integers(2, 999))
def test_a_given_size_is_kept_or_refused(floats, p, size):
    shape = shape_or_none(floats, p, Fixed(sketch_size=size, exact=False))
    if shape is None:
        assert size > floats
    else:
        assert shape.sketch_size == size and shape.floats <= floats and 2 * shape.rank <= size


@given(FLOATS, st.integers(1, 500), st.integers(1, 5000))
def test_both_given_are_kept_or_refused(floats, rank, size):
    shape = shape_or_none(floats, 10**6, Fixed(rank, size, exact=False))
    assert (shape is None) == (rank * size > floats)
    assert shape is None or (shape.rank, shape.sketch_size) == (rank, size)


@given(FLOATS, PARAMETERS)
def test_no_sketch_by_wish(floats, p):
    assume(p > 2)
    shape = shape_or_none(floats, p, Fixed(exact=True))
    assert (shape is None) == (floats < p)
    assert shape is None or (shape.exact and shape.rank == min(MOST_PASSES, p - 1, floats // p))


@pytest.mark.parametrize(
    ("fixed", "message", "cures"),
    [
        (Fixed(rank=300), r"rank=141 would fit", [Fixed(rank=141)]),
        (Fixed(rank=200, sketch_size=1000), r"rank=133 .* sketch_size=666", [Fixed(133, 1000), Fixed(200, 666)]),
        (Fixed(sketch_size=200_000), r"smallest budget is 200,000 floats \('4\.51p'\)", []),
        (Fixed(rank=0), "at least 1", []),
        (Fixed(sketch_size=0), "at least 1", []),
        (Fixed(sketch_size=1, exact=False), "sketch_size=2", []),
    ],
)
def test_refusals_name_what_fits(fixed, message, cures):
    with pytest.raises(BudgetError, match=message):
        shape_for(3 * LENET, LENET, fixed)
    for cure in cures:
        assert shape_for(3 * LENET, LENET, cure).floats <= 3 * LENET
