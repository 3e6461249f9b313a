"""The arithmetic of what methods hold."""

from dataclasses import replace

import pytest

from slu.budgets import Size, Sketched, gradients, sketched_lanczos, sketched_stream
from slu.budgets.costs import WORK, chunks_of
from slu.gradients.chunks import PIECE_NUMBERS as PIECE

P = 10_000_000
SIZE = Size(P, outputs=10, parts=(P // 4,) * 4)
SKETCH = Sketched(size=1000, state=P // 8, scratch=lambda rows: 0)


def test_slu_is_the_papers_count():
    """4 p + s (k + 1) while fitting, and the sketch's state."""
    cost = sketched_lanczos(100, SKETCH, SIZE)
    assert cost.artefact == 4 * 1000 * 100
    assert cost.fitting == 4 * (4 * P + 1000 * 101) + P // 8
    assert cost.passes == 100


def test_what_settings_add():
    plain = sketched_lanczos(10, SKETCH, SIZE)
    assert sketched_lanczos(10, SKETCH, SIZE, precondition=3).fitting == plain.fitting + 3 * 4 * P
    assert sketched_lanczos(10, SKETCH, SIZE, hessian=True).fitting == plain.fitting + 4 * P
    long = Sketched(size=P // 10, state=0, scratch=lambda rows: 0)
    assert sketched_lanczos(50, long, SIZE, keep=True).fitting > 2 * sketched_lanczos(50, long, SIZE).fitting
    kernel = Size(P, outputs=10, kernel=P // 4)
    assert sketched_lanczos(10, SKETCH, kernel).fitting == plain.fitting + P
    assert (
        sketched_lanczos(10, Sketched(1000, P // 8, scratch=lambda rows: 20 * P), SIZE).fitting
        == plain.fitting + 12 * P
    )


@pytest.mark.parametrize(
    ("outputs", "batch", "rows"), [(1, 1, 1), (6, 1, 6), (2, 2, 4), (2, 100, 8), (7, 1, 7), (9, 1, 5)]
)
def test_gradients_come_together_as_far_as_the_limit_allows(outputs, batch, rows):
    """Rows of one piece, a quarter of p, and what is worked on; or the check of the first batch."""
    p = 1_000_000
    size = Size(p, outputs, parts=(p // 4,) * 4, batch=batch, max_numbers=6 * p)
    formed = rows * (p // 4) + min(WORK, rows * (p // 4))
    checked = 2 * (p // 4)
    assert gradients(size) == 4 * max(formed, checked)
    # Where the rows are not the whole batch, those of the smallest tensors are formed for all of it.
    small = replace(size, tensors=(1000, 2000, p // 4 - 3000, p // 4, p // 4, p // 4))
    assert gradients(small) - gradients(size) == (4 * batch * outputs * 3000 if batch > rows else 0)


@pytest.mark.parametrize(
    ("activations", "batch", "vectors"),
    [
        (1, 1, 10),
        (PIECE // 10, 1, 10),
        (PIECE // 9, 1, 5),
        (PIECE // 20, 4, 5),
        (PIECE, 1, 1),
        (3 * PIECE, 2, 1),
    ],
)
def test_gradients_in_activations_are_held_for_the_vectors_pulled_back_at_a_time(activations, batch, vectors):
    """A piece of them, or those of one vector; about equally many vectors each time."""
    without = Size(10_000, 10, batch=batch)
    size = replace(without, activations=activations)
    assert chunks_of(size).vectors == vectors
    held = 4 * batch * activations * vectors
    assert held <= gradients(size) <= held + gradients(replace(without, outputs=vectors))


def test_the_largest_piece_is_held_twice_for_the_check():
    assert gradients(Size(P, parts=(P // 2, P // 4, P // 4))) == 4 * 2 * (P // 2)


def test_a_query_of_positions_holds_vectors_of_some_groups():
    """Vectors over all outputs of as many groups as 2²² numbers hold, and what these are cut out of."""
    sketch = Sketched(size=10, state=0, scratch=lambda rows: 0)
    size = Size(1000, outputs=1, batch=8, activations=PIECE)  # one vector is pulled back at a time
    plain = sketched_lanczos(5, sketch, size)
    tokens = replace(size, groups=50, positions=100, over_positions=1000)
    assert tokens.groups_at_once == 50
    assert sketched_lanczos(5, sketch, tokens).querying == plain.querying + 4 * 52 * 8 * 1000
    words = replace(tokens, over_positions=100 * 2000)
    assert words.groups_at_once == 2
    assert sketched_lanczos(5, sketch, words).querying == plain.querying + 4 * 4 * 8 * 200_000


def test_a_fit_counts_the_chunks_of_what_hold_out_leaves_of_a_batch():
    """Of which 21 rows may be in flight: 64 come by 16, and the 58 that are left of them by 20."""
    size = Size(PIECE // 21, outputs=1, batch=64)
    left = replace(size, batch=58)
    assert [chunks_of(each).examples(1) for each in (size, left)] == [16, 20]
    sketch = Sketched(size=10, state=0, scratch=lambda rows: 0, checked=True)
    assert sketched_stream(2, 4, sketch, size, 1).fitting == sketched_stream(2, 4, sketch, left, 1).fitting
    assert sketched_stream(2, 4, sketch, size, 1).querying < sketched_stream(2, 4, sketch, left, 1).querying
