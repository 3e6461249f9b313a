"""What every sketch of the table promises; a new kind is held to it by its row in the table."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from layouts import layout_of
from slu.sketches import SKETCHES, Sketch, SketchSpec, build

KINDS = sorted(SKETCHES)
SIZES = [(1200, 100), (701, 37), (130, 127)]
"""(p, s): several runs of s, nothing divides anything, and s near p."""


def make(kind: str, p: int = 701, s: int = 37, seed: int = 0, **options: int) -> Sketch:
    return build(SketchSpec(kind, p, p if kind == "identity" else s, seed, options, layout_of(p)))


def small_blocks(kind: str) -> dict[str, int]:
    """Options that make the kind use several blocks at a small p."""
    return {"block": 128} if kind == "block_srft" else {}


def dense(sketch: Sketch) -> Tensor:
    return sketch @ torch.eye(sketch.shape[1], dtype=torch.float64)


@pytest.mark.parametrize("p, s", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_one_matrix(kind: str, p: int, s: int) -> None:
    sketch = make(kind, p, s, **small_blocks(kind))
    matrix = dense(sketch)
    v = torch.randn(p, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    w = torch.randn(matrix.shape[0], 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert sketch.shape == tuple(matrix.shape)
    torch.testing.assert_close(sketch @ v, matrix @ v)
    torch.testing.assert_close(sketch @ v[:, 0], matrix @ v[:, 0])
    torch.testing.assert_close(sketch.T @ w, matrix.mT @ w)
    torch.testing.assert_close(sketch.T @ w[:, 0], matrix.mT @ w[:, 0])
    torch.testing.assert_close(sketch.T.T @ v, matrix @ v)
    torch.testing.assert_close(sketch @ (2 * v[:, 0] - 3 * v[:, 1]), 2 * (sketch @ v[:, 0]) - 3 * (sketch @ v[:, 1]))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_adjoint(kind: str, data: st.DataObject) -> None:
    p = data.draw(st.integers(40, 600), "p")
    s = data.draw(st.integers(4, 40), "s")
    start = data.draw(st.integers(0, p - 1), "start")
    stop = data.draw(st.integers(start, p), "stop")
    sketch = make(kind, p, s, seed=p, **small_blocks(kind))
    stream = torch.Generator().manual_seed(s)
    x = torch.randn(stop - start, dtype=torch.float64, generator=stream)
    y = torch.randn(sketch.shape[0], dtype=torch.float64, generator=stream)
    out = torch.zeros_like(y)
    sketch.accumulate(start, x, out)
    torch.testing.assert_close(out @ y, x @ sketch.spread(start, stop, y), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(cuts=st.lists(st.integers(0, 701), max_size=6))
def test_a_sum_over_any_segments_is_the_whole(kind: str, cuts: list[int]) -> None:
    sketch = make(kind, **small_blocks(kind))
    v = torch.randn(701, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    borders = [0, *sorted(cuts), 701]
    out = torch.zeros(sketch.shape[0], dtype=torch.float64)
    for a, b in pairwise(borders):
        sketch.accumulate(a, v[a:b], out)
    torch.testing.assert_close(out, sketch @ v)
    back = [sketch.spread(a, b, out) for a, b in pairwise(borders)]
    torch.testing.assert_close(torch.cat(back), sketch.T @ out)


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_several_pieces_are_added_as_one_by_one(kind: str, lead: tuple[int, ...], data: st.DataObject) -> None:
    """Whatever their order, with gaps between them; not from the start of a tensor to its end."""
    sketch = make(kind, **small_blocks(kind))
    borders = [0, *sorted(data.draw(st.lists(st.integers(0, 701), max_size=8), "cuts")), 701]
    kept = data.draw(st.permutations(list(pairwise(borders))), "order")
    kept = kept[: data.draw(st.integers(1, len(kept)), "count")]
    v = torch.randn(*lead, 701, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    expected = torch.ones(*lead, sketch.shape[0], dtype=torch.float64)
    actual = expected.clone()
    for a, b in kept:
        sketch.accumulate(a, v[..., a:b], expected)
    sketch.accumulate_pieces([(a, v[..., a:b]) for a, b in kept], actual)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_leading_dimensions_and_what_was_there(kind: str) -> None:
    sketch = make(kind, **small_blocks(kind))
    v = torch.randn(4, 3, 701, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    out = torch.ones(sketch.shape[0], 4, 3, dtype=torch.float64).permute(1, 2, 0)  # not contiguous
    sketch.accumulate(0, v, out)
    expected = torch.stack([torch.stack([1 + sketch @ row for row in rows]) for rows in v])
    torch.testing.assert_close(out, expected)
    assert sketch.spread(5, 50, out).shape == (4, 3, 45)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_dtype_is_kept(kind: str, dtype: torch.dtype) -> None:
    sketch = make(kind)
    v = torch.randn(701, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    out = sketch @ v.to(dtype)
    assert out.dtype == dtype and (sketch.T @ out).dtype == dtype
    torch.testing.assert_close(out.double(), sketch @ v, atol=1e-5, rtol=1e-5)
    wide = torch.zeros(sketch.shape[0])
    sketch.accumulate(0, v.to(torch.bfloat16), wide)  # half precision is summed in the dtype of `into`
    torch.testing.assert_close(wide, sketch @ v.to(torch.bfloat16).float())


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_means_numbers_and_no_global_stream_is_used(kind: str) -> None:
    before = torch.get_rng_state()
    first, same, other = make(kind, seed=1), make(kind, seed=1), make(kind, seed=2)
    matrix = dense(first)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(matrix, dense(same))
    assert kind == "identity" or not torch.allclose(matrix, dense(other))


class Largest(TorchDispatchMode):
    """The largest tensor that any operation gives back."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor) and tensor._base is None and not func.is_view:
                self.numbers = max(self.numbers, tensor.numel())
        return out


# "srft" transforms the whole vector by its nature; the dense ones are their own p·s numbers of state.
@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("srft", "gaussian", "rademacher", "identity")])
def test_scratch_is_bounded(kind: str) -> None:
    p = 6_000_000
    sketch = make(kind, p, 200)
    v, out = torch.ones(p), torch.zeros(200)
    with Largest() as seen:
        sketch.accumulate(0, v, out)
    assert 0 < seen.numbers <= 1 << 20


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_shapes_are_named(kind: str) -> None:
    sketch = make(kind)
    s = sketch.shape[0]
    with pytest.raises(ValueError, match=r"not within the 701"):
        sketch.accumulate(700, torch.zeros(5), torch.zeros(s))
    with pytest.raises(ValueError, match=r"`into` has shape"):
        sketch.accumulate(0, torch.zeros(2, 5), torch.zeros(s))
    with pytest.raises(ValueError, match=r"length s"):
        sketch.spread(0, 3, torch.zeros(s + 1))
    with pytest.raises(ValueError, match=r"S @ v takes"):
        sketch @ torch.zeros(700)
