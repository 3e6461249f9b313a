"""The sketch "kronecker" against its definition, and gradients that are not formed against formed ones."""

from __future__ import annotations

import dataclasses
import json
import math
import weakref
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot
from torch.utils._python_dispatch import TorchDispatchMode

from slu.errors import SettingError
from slu.parameters import matrix_shape
from slu.sketches import SketchSpec, build
from slu.sketches.fourier_pairs import FourierPairs, draw_pairs
from slu.sketches.kronecker import Kronecker, is_large
from slu.sketches.srft import fast_length

LAYOUT = ((20, 30), (1, 20), (7, 9), (91, 95), (3, 301), (1, 5), (211, 3), (2, 402))
"""A fast shape, vectors, a small matrix, one with two terms per output, three rows, three columns, two rows."""
P = sum(o * i for o, i in LAYOUT)
STARTS = [sum(o * i for o, i in LAYOUT[:number]) for number in range(len(LAYOUT))]
SIZES = (40, 101)  # even and odd; of these (7, 9) is never large, (20, 30) always
NUMBERS = range(len(LAYOUT))


def make(s: int = 40, layout: tuple[tuple[int, int], ...] = LAYOUT, seed: int = 0) -> Kronecker:
    sketch = build(SketchSpec("kronecker", sum(o * i for o, i in layout), s, seed, layout=layout))
    assert isinstance(sketch, Kronecker)
    return sketch


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dense(sketch: Kronecker) -> Tensor:
    return sketch @ torch.eye(sketch.shape[1], dtype=torch.float64)


@cache
def known(s: int) -> tuple[Kronecker, Tensor]:
    """A sketch and its matrix."""
    return make(s), dense(make(s))


def defined(pairs: FourierPairs, s: int) -> Tensor:
    """S_j (s, o·i) from its definition: every cosine of every entry."""
    k, l = pairs._k.double(), pairs._l.double()
    k[pairs._up :] *= -1
    rows, columns = torch.arange(pairs.o), torch.arange(pairs.i)
    angles = (
        2
        * math.pi
        * (k[:, None, None] * rows[:, None] / fast_length(pairs.o) + l[:, None, None] * columns / fast_length(pairs.i))
    )
    signs = pairs._left[:, None].double() * pairs._right
    parts = torch.stack([angles.cos() * signs, -angles.sin() * signs], 1).flatten(0, 1).flatten(1)
    chosen = parts[pairs._places.long()] * pairs._signs.double()[:, None]
    return math.sqrt(2 / (pairs.terms * s)) * chosen.view(pairs.terms, s, -1).sum(0)


@pytest.mark.parametrize("s", SIZES)
def test_it_is_the_matrix_of_its_definition(s: int) -> None:
    sketch, matrix = known(s)
    small = torch.empty(s, 0, dtype=torch.float64)
    for number, (o, i) in enumerate(LAYOUT):
        pairs = sketch._matrices[number]
        part = matrix[:, STARTS[number] : STARTS[number] + o * i]
        assert (pairs is not None) == is_large(o, i, s)
        if pairs is None:
            small = torch.cat([small, part], 1)
        else:
            torch.testing.assert_close(part, defined(pairs, s))
    # The other tensors are one vector in their order, through the sketch "block_srft" of the same seed.
    count = small.shape[1]
    joined = build(SketchSpec("block_srft", max(count, s), s, 0, {"block": 4096}))
    torch.testing.assert_close(small, (joined @ torch.eye(max(count, s), dtype=torch.float64))[:, :count])
    torch.testing.assert_close(sketch.T @ torch.eye(s, dtype=torch.float64), matrix.mT)


@pytest.mark.parametrize("shape", [(20, 30), (2, 250), (48, 4), (2, 2 * 81)])
def test_rows_are_orthogonal_where_nothing_is_padded(shape: tuple[int, int]) -> None:
    s, p = math.prod(shape) // 4, math.prod(shape)
    matrix = dense(make(s, (shape,)))
    torch.testing.assert_close(matrix @ matrix.mT, p / s * torch.eye(s, dtype=torch.float64))


@pytest.mark.parametrize("s", SIZES)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(cuts=st.lists(st.integers(0, P), max_size=5))
def test_cuts_anywhere(s: int, cuts: list[int]) -> None:
    sketch, matrix = known(s)
    values, out = draw(3, P), torch.zeros(3, s, dtype=torch.float64)
    borders = [0, *sorted(cuts), P]
    for a, b in pairwise(borders):
        sketch.accumulate(a, values[:, a:b], out)
    torch.testing.assert_close(out, values @ matrix.mT)
    back = [sketch.spread(a, b, out) for a, b in pairwise(borders)]
    torch.testing.assert_close(torch.cat(back, 1), out @ matrix)


def test_matrices_that_are_transformed_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers where no whole matrix and few positions fit into a step."""
    matrix, values, w = known(40)[1], draw(3, P), draw(2, 40, seed=1)
    monkeypatch.setattr("slu.sketches.fourier_pairs.WHOLE", 100)
    monkeypatch.setattr("slu.sketches.kronecker.WHOLE", 100)
    monkeypatch.setattr("slu.sketches.fourier_pairs.CHUNK", 2000)
    sketch = make()
    out = torch.zeros(3, 40, dtype=torch.float64)
    sketch.accumulate(0, values, out)
    torch.testing.assert_close(out, values @ matrix.mT)
    torch.testing.assert_close(sketch.spread(0, P, w), w @ matrix)
    for number in NUMBERS:
        check_factors(sketch, matrix, number, (4, 2), (4, 1), by_row=True)
        check_factors(sketch, matrix, number, (4, 2), (4, 1), by_row=False)


def check_factors(
    sketch: Kronecker, matrix: Tensor, number: int, lefts: tuple[int, ...], rights: tuple[int, ...], *, by_row: bool
) -> None:
    (o, i), start = LAYOUT[number], STARTS[number]
    right = draw(*rights, 6, i, seed=1)
    left = draw(*lefts, 6, o)
    given = left
    if by_row:
        given = torch.randint(0, o, (*lefts, 6), generator=torch.Generator().manual_seed(2))
        left = one_hot(given, o).double()
    formed = (left.mT @ right).flatten(-2)
    out = torch.ones(*formed.shape[:-1], sketch.shape[0], dtype=torch.float64)
    sketch.accumulate_outer(start, given, right, out)
    torch.testing.assert_close(out, 1 + formed @ matrix[:, start : start + o * i].mT)
    single = torch.zeros(*formed.shape[:-1], sketch.shape[0])
    sketch.accumulate_outer(start, given if by_row else given.float(), right.bfloat16().float(), single)
    assert single.dtype == torch.float32
    rounded = (left.float().double().mT @ right.bfloat16().double()).flatten(-2)
    expected = rounded @ matrix[:, start : start + o * i].mT
    torch.testing.assert_close(single.double(), expected, atol=3e-6 * float(rounded.norm()), rtol=0)


@pytest.mark.parametrize("lead", [((), ()), ((5,), (5,)), ((4, 3), (4, 1)), ((4, 1), (4, 3)), ((1, 3), (4, 1))])
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("s", SIZES)
def test_factors_give_what_the_formed_matrix_gives(s: int, by_row: bool, lead: tuple) -> None:
    sketch, matrix = known(s)
    for number in NUMBERS:
        check_factors(sketch, matrix, number, *lead, by_row=by_row)


def test_no_positions_add_nothing_and_a_long_table_is_exact() -> None:
    sketch = make(50, ((70_001, 4),))  # rows times frequencies exceed 32 bits
    out = torch.zeros(3, 50, dtype=torch.float64)
    sketch.accumulate_outer(0, torch.zeros(3, 0, dtype=torch.long), torch.zeros(3, 0, 4), out)
    assert not out.any()
    rows, right = torch.tensor([[0, 1, 70_000]]), draw(1, 3, 4)
    pairs = sketch._matrices[0]
    assert pairs is not None
    sketch.accumulate_outer(0, rows, right, out[:1])
    k, tall = pairs._k.long(), fast_length(70_001)
    k[pairs._up :] *= -1
    across = pairs._l.double()[:, None, None] * torch.arange(4) / 4
    angles = 2 * math.pi * ((k[:, None] * rows[0] % tall)[..., None] / tall + across)
    signs = pairs._left[rows[0]].double()[:, None] * pairs._right
    z = (torch.polar(torch.ones_like(angles), -angles) * signs * right[0]).sum((1, 2))
    parts = torch.view_as_real(z).flatten()[pairs._places.long()] * pairs._signs
    torch.testing.assert_close(out[0], parts * math.sqrt(2 / 50))


@pytest.mark.parametrize("tall, wide, count", [(64, 50, 100), (2, 600, 30), (600, 2, 30), (8, 10, 10), (4096, 6, 500)])
def test_pairs_are_different_and_every_frequency_occurs_about_equally_often(tall: int, wide: int, count: int) -> None:
    k, l = draw_pairs(tall, wide, count, torch.Generator().manual_seed(0))
    assert len(k) == len(l) == count
    assert ((-tall // 2 < k) & (k <= tall // 2) & (l >= 0) & (l <= wide // 2)).all()
    both = {(a % tall, b) for a, b in zip(k.tolist(), l.tolist(), strict=True)}
    both |= {(-a % tall, -b % wide) for a, b in zip(k.tolist(), l.tolist(), strict=True)}
    assert len(both) == 2 * count  # also none is its own conjugate
    for frequencies, n in ((k.abs() % (tall // 2), tall // 2), (l % (wide // 2), wide // 2)):
        counts = torch.bincount(frequencies, minlength=n).double()
        if count < n:
            assert (
                counts.max() <= 2 and counts.sum() - (counts > 0).sum() <= count // 20
            )  # skipped pairs may repeat one
        elif n > 1:  # independent draws would have a variance of count/n
            assert counts.var() <= 0.5 * count / n


class Work(TorchDispatchMode):
    """Numbers that all operations give back, and multiplications of products of matrices at a fortieth of one."""

    total = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not func.is_view:
            self.total += out.numel()
            if "mm" in func.__name__:
                self.total += out.numel() * args[0].shape[-1] / 40
        return out


@pytest.mark.parametrize(
    ("positions", "shape", "factors"),
    [
        (1, (1024, 1024), True),
        (1, (120, 256), True),
        (128, (512, 2048), True),
        (16, (256, 2304), True),
        (4, (512, 1024), True),
        (1024, (64, 576), False),
        (4096, (32, 288), False),
        (256, (64, 128), False),
    ],
)
def test_the_cost_rule_picks_what_takes_less_work(positions: int, shape: tuple[int, int], factors: bool) -> None:
    sketch = make(1000, (shape,))
    left, right, out = draw(positions, shape[0]), draw(positions, shape[1]), torch.zeros(1000, dtype=torch.float64)
    with Work() as unformed:
        sketch.accumulate_outer(0, left, right, out)
        ((left @ left.mT) * (right @ right.mT)).sum()
    with Work() as formed:
        gradient = left.mT @ right
        sketch.accumulate(0, gradient.flatten(), out)
        gradient.square().sum()
    assert (unformed.total < formed.total) == factors == sketch.prefers_factors(0, positions)


@pytest.mark.parametrize(
    ("positions", "shape", "size", "factors"),
    [
        (128, (30_522, 384), 2000, True),
        (512, (30_522, 384), 2000, True),
        (1024, (50_257, 768), 2000, True),
        (512, (30_000, 128), 2000, True),
        (64, (5000, 64), 2000, True),
        (512, (5000, 64), 2000, False),
        (128, (1000, 64), 2000, False),
    ],
)
def test_words_of_a_large_table_are_not_formed(positions, shape, size, factors) -> None:
    """A table has few rows that occur; the rule of dense factors would form most of these."""
    spec = SketchSpec("kronecker", shape[0] * shape[1], size, layout=(shape,))
    assert Kronecker.prefers_factors_of(spec, 0, positions, words=True) == factors


class Live(TorchDispatchMode):
    """The most bytes that were held at a time by what operations gave back."""

    held = peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and not func.is_view and not any(out is each for each in args):
            storage = out.untyped_storage()
            self.held += storage.nbytes()
            self.peak = max(self.peak, self.held)
            weakref.finalize(storage, self.free, storage.nbytes())
        return out

    def free(self, size: int) -> None:
        self.held -= size


@pytest.mark.parametrize("layout", [((1000, 1000), (1, 1000)), ((2100, 2100),), ((40_000, 64),), ((64, 576), (1, 64))])
def test_scratch_is_what_the_planner_is_told(layout: tuple[tuple[int, int], ...]) -> None:
    sketch = make(500, layout)
    o, i = layout[0]
    vector, out = torch.ones(sketch.shape[1]), torch.zeros(500)
    left, right, rows = torch.ones(300, o), torch.ones(300, i), torch.zeros(300, dtype=torch.long)
    peaks = []
    for work in (
        lambda: sketch.accumulate(0, vector, out),
        lambda: sketch.accumulate_outer(0, left, right, out),
        lambda: sketch.accumulate_outer(0, rows, right, out),
    ):
        with Live() as live:
            work()
        peaks.append(live.peak)
    # What a transform copies inside is not seen here, up to half of it all.
    assert 0.4 < max(peaks) / sketch.scratch_bytes_of(sketch.spec) < 1


def test_small_tensors_are_formed() -> None:
    sketch = make()
    for start, (o, i) in zip(STARTS, LAYOUT, strict=True):
        assert sketch.prefers_factors(start, 1) == is_large(o, i, 40)


def test_the_layout_survives_json_and_is_checked() -> None:
    sketch = make()
    again = SketchSpec(**json.loads(json.dumps(dataclasses.asdict(sketch.spec))))
    assert again == sketch.spec and again.layout == LAYOUT and hash(again) == hash(sketch.spec)
    assert torch.equal(sketch @ draw(P), build(again) @ draw(P))
    with pytest.raises(SettingError, match=r"needs the shapes .* 50 parameters.*give layout="):
        build(SketchSpec("kronecker", 50, 10))
    with pytest.raises(SettingError, match="51 numbers, and the sketch is for 50"):
        SketchSpec("kronecker", 50, 10, layout=((5, 10), (1, 1)))
    for wrong in [((50,),), ((5.0, 10),), ((-5, -10),)]:
        with pytest.raises(SettingError, match="pair of whole numbers"):
            SketchSpec("kronecker", 50, 10, layout=wrong)
    assert build(SketchSpec("hashed", 50, 10, layout=((5, 10),))).spec.layout == ()


def test_wrong_factors_are_named() -> None:
    sketch, out = make(), torch.zeros(40)
    with pytest.raises(SettingError, match=r"no tensor begins at coordinate 7; those of the layout begin at \[0, 600,"):
        sketch.accumulate_outer(7, torch.zeros(1, 20), torch.zeros(1, 30), out)
    with pytest.raises(SettingError, match=r"no tensor begins"):
        sketch.prefers_factors(P, 1)
    with pytest.raises(SettingError, match=r"matrix \(20, 30\) at coordinate 0 .* got \(1, 30\) and \(1, 20\)"):
        sketch.accumulate_outer(0, torch.zeros(1, 30), torch.zeros(1, 20), out)
    with pytest.raises(SettingError, match=r"`into` has shape \(40,\).* need \(2, 40\)"):
        sketch.accumulate_outer(0, torch.zeros(2, 1, 20), torch.zeros(1, 1, 30), out)


def test_state_does_not_grow_with_the_product_of_the_dimensions() -> None:
    sketch = make(1000, ((4096, 4096), (1, 4096)))
    assert sketch.state_bytes < 2 * 4096 + 4 * 5 * 1000 + 4096 / 8 + 2 * 1000 + 10


def test_matrix_shape() -> None:
    shapes = {(64, 3, 7, 7): (64, 147), (96, 1, 3, 3): (96, 9), (1, 64, 1): (1, 64), (5,): (1, 5), (): (1, 1)}
    assert {shape: matrix_shape(shape) for shape in shapes} == shapes
