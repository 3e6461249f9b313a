"""Keys of examples: by content alone; and the uniform numbers drawn from them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from slu.data import fingerprint as module
from slu.data.fingerprint import CopyCounter, example_keys, uniforms, uniforms_at
from slu.data.structure import Examples
from slu.errors import DataError

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def draw(points: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(points, *shape, generator=torch.Generator().manual_seed(seed))


def batch(points: int = 20) -> dict[str, object]:
    return {
        "image": draw(points, 3, 4),
        "words": (draw(points, 5, seed=1) * 9).long(),
        "plain": draw(points),
        "flag": True,
    }


def rows(tree: dict[str, object], places) -> dict[str, object]:
    return {name: value[places] if isinstance(value, Tensor) else value for name, value in tree.items()}


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(range(20)), cut=st.integers(1, 19))
def test_a_sample_has_the_same_key_in_any_batch_and_order(order, cut):
    keys = example_keys(batch(), 20)
    parts = [torch.tensor(order[:cut]), torch.tensor(order[cut:])]
    actual = torch.cat([example_keys(rows(batch(), part), len(part)) for part in parts])
    assert torch.equal(actual, keys[torch.tensor(order)])


def test_memory_layout_does_not_matter():
    values = draw(6, 3, 4)
    turned = values.transpose(1, 2).contiguous().transpose(1, 2)
    assert not turned.is_contiguous()
    assert torch.equal(example_keys(turned, 6), example_keys(values, 6))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_single_bit_counts(dtype):
    width = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    values = draw(1, 3).to(dtype)
    plain = example_keys(values, 1)
    for place in range(3):
        for bit in range(8 * dtype.itemsize):
            other = values.clone()
            other.view(width)[0, place] ^= torch.tensor(1).to(width) << bit
            assert example_keys(other, 1) != plain


@pytest.mark.parametrize("dtype", DTYPES)
def test_types_of_numbers(dtype):
    values = (draw(50, 40) * 3).abs().to(dtype)
    keys = example_keys(values, 50)
    assert (keys.shape, keys.dtype) == ((50,), torch.int64)
    assert len(keys.unique()) == len(values.to(torch.float64).unique(dim=0))


def low_bits(kind: str, points: int = 20_000) -> Tensor:
    """Distinct rows of numbers whose last bits are 0, as floating numbers."""
    generator = torch.Generator().manual_seed(0)
    if kind == "pixels":
        return torch.randint(256, (points, 8), generator=generator).double()
    rows = torch.randint(2, (2 * points, 40), generator=generator).unique(dim=0)
    return rows[:points].double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["zeros and ones", "pixels"])
def test_numbers_with_few_bits_have_keys_of_64(kind, dtype):
    values = low_bits("zeros and ones" if dtype == torch.bool else kind)
    keys = example_keys(values.to(dtype), len(values))
    assert len(values.unique(dim=0)) == len(keys.unique()) == 20_000
    sums = module._hashed_tensor(values.to(dtype), len(values))  # before they are mixed, which hides what is lost
    for bits in (keys & 0xFFFF, (keys >> 48) & 0xFFFF, sums & 0xFFFF, (sums >> 48) & 0xFFFF):
        # Of 65,536 values as many as a uniform draw would have, within five standard deviations.
        assert abs(len(bits.unique()) - 65_536 * (1 - np.exp(-20_000 / 65_536))) < 5 * 43


def test_a_number_without_dimensions_and_rows_without_numbers_have_keys():
    for dtype in (torch.float64, torch.float32, torch.complex128):
        assert example_keys((draw(3, 2), torch.tensor(2.0, dtype=dtype)), 3).shape == (3,)
        assert example_keys(torch.zeros(3, 0, dtype=dtype), 3).shape == (3,)


def test_complex_numbers_count_both_parts():
    values = torch.complex(draw(4, 3), draw(4, 3, seed=1))
    assert torch.equal(example_keys(values, 4), example_keys(values.conj().resolve_conj().conj(), 4))
    assert not (example_keys(values, 4) == example_keys(values.conj(), 4)).any()


def test_the_place_of_a_number_and_of_a_tensor_counts():
    a, b = draw(5, 3), draw(5, 3, seed=1)
    assert not (example_keys(a, 5) == example_keys(a.flip(1), 5)).any()
    assert not (example_keys((a, b), 5) == example_keys((b, a), 5)).any()


def test_sparse_patterns_do_not_collide():
    one_hot = torch.eye(2000)
    pairs = one_hot[:1000] + one_hot.roll(1, 1)[:1000]
    assert len(example_keys(torch.cat([one_hot, pairs]), 3000).unique()) == 3000


def test_a_tensor_that_is_shared_changes_the_keys_of_all():
    a = draw(5, 3)
    plain, shared = example_keys(a, 5), example_keys((a, torch.tensor(2.0)), 5)
    assert not (plain == shared).any()
    assert torch.equal(example_keys((a[1:3], torch.tensor(2.0)), 2), shared[1:3])


KS_SEEDS = [0, 1, 2, 3, 4]
# Five seeds of three columns: below this once in 70,000 choices of seeds.
UNLIKELY = 1e-6


@pytest.mark.parametrize("seed", KS_SEEDS)
@pytest.mark.parametrize("content", ["random", "counted", "one-hot"])
def test_uniform_numbers_are_uniform(content, seed):
    values = {"random": draw(4000, 5), "counted": torch.arange(4000)[:, None], "one-hot": torch.eye(1000)}[content]
    numbers = uniforms(example_keys(values, len(values)), 3, seed, "labels")
    assert (numbers.shape, numbers.dtype) == ((len(values), 3), torch.float64)
    for column in numbers.T:
        assert stats.kstest(column.numpy(), "uniform").pvalue > UNLIKELY


@pytest.mark.parametrize("seed", KS_SEEDS)
def test_control_slightly_bent_numbers_are_noticed(seed):
    numbers = uniforms(example_keys(draw(4000, 5), 4000), 3, seed, "labels") ** 1.25
    assert min(stats.kstest(column.numpy(), "uniform").pvalue for column in numbers.T) < UNLIKELY


@pytest.mark.parametrize("bits", [0, -1, 1, 2**63 - 1, -(2**63)])
def test_uniform_numbers_stay_strictly_inside(monkeypatch, bits):
    # Whatever 64 bits the mixing gives: all zeros and all ones are the ends.
    monkeypatch.setattr(module, "_mixed", lambda values: torch.full_like(values, bits))
    numbers = uniforms(torch.arange(3), 2, 0, "labels")
    assert numbers.min() > 0
    assert numbers.max() < 1


def test_columns_seeds_and_purposes_are_unrelated():
    keys = example_keys(draw(4000, 5), 4000)
    columns = torch.cat([uniforms(keys, 2, seed, purpose) for seed in (0, 1) for purpose in ("labels", "probes")], 1)
    correlation = torch.corrcoef(columns.T) - torch.eye(8)
    assert correlation.abs().max() < 5 / 4000**0.5  # five standard errors of a correlation of nothing


def test_more_columns_begin_with_the_same_ones():
    keys = example_keys(draw(10, 5), 10)
    assert torch.equal(uniforms(keys, 5, 0, "labels")[:, :2], uniforms(keys, 2, 0, "labels"))


def test_keys_of_examples_belong_to_their_content():
    mappings = [{"text": "a", "n": 1}, {"n": 1, "text": "a"}]
    examples = ["a", "b", *mappings, ["a", "b"], ["ab"], torch.ones(2), np.ones(2), 1, "1"]
    keys = example_keys(Examples(examples), len(examples))
    assert keys[2] == keys[3], "the order of keys does not count"
    assert len(keys.unique()) == len(examples) - 1
    assert torch.equal(example_keys(Examples(examples[3:5]), 2), keys[3:5])


def test_images_have_the_key_of_their_pixels():
    """PIL's images offer no `__array__`, but an interface of arrays."""

    class Image:
        def __init__(self, pixels):
            self.__array_interface__ = pixels.__array_interface__

    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    keys = example_keys(Examples([Image(pixels), pixels, Image(pixels.T.copy())]), 3)
    assert keys[0] == keys[1] != keys[2]


def padded(name: str, left: int) -> dict[str, Tensor]:
    """Three tokens, so many of five positions to the left of them."""
    counts = torch.zeros(1, 5, dtype=torch.int64)
    counts[:, left : left + 3] = 1
    tokens = counts * torch.arange(7, 12)
    named = {"attention_mask": counts, "padding_mask": counts == 0, "lengths": counts.sum(1)}
    return {"input_ids": tokens, name: named[name]}


KEYS: dict[str, tuple[Any, int]] = {
    "float32": (torch.tensor([[0.5, -2.0]]), 4265843557080989695),
    "float64": (torch.tensor([[0.1, -2.0]], dtype=torch.float64), 7485818173860000391),
    "float16": (torch.tensor([[0.5, -2.0]], dtype=torch.float16), 3775850539743590275),
    "int64": (torch.tensor([[3, -2, 1 << 40]]), -6842287310908334993),
    "uint8": (torch.tensor([[3, 255]], dtype=torch.uint8), 6063325130004759661),
    "several": ((torch.tensor([[0.5]]), {"a": torch.tensor([[1]])}), 6509617759039871403),
    "examples": (Examples([{"text": "a", "n": 1}]), 5743299120045974265),
    "right": (padded("attention_mask", 0), 1760504630914302928),
    "left": (padded("attention_mask", 2), 4662595501265077013),
    "true at padding": (padded("padding_mask", 1), -1222243796482054134),
    "lengths": (padded("lengths", 0), 4881943365062186042),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_are_those_of_every_run_of_this_version(kind):
    """They are in checkpoints, and files name the rule by which points were held out."""
    tree, expected = KEYS[kind]
    assert int(example_keys(tree, 1)) == expected, (
        "other keys: raise VERSION of slu.artifacts.checkpoint and _RULE of slu.core.calibration_state; add golden ones"
    )


def test_an_example_of_unknown_content_is_refused():
    with pytest.raises(DataError, match="an example holds a object"):
        example_keys(Examples([object()]), 1)


@settings(max_examples=30, deadline=None)
@given(keys=st.lists(st.integers(-5, 5), min_size=1, max_size=200), size=st.integers(1, 60))
def test_copies_are_numbered_as_they_come(keys, size):
    counter, came, expected = CopyCounter(), Counter(), []
    for key in keys:
        expected.append(came[key])
        came[key] += 1
    actual = [counter(part) for part in torch.tensor(keys).split(size)]
    assert torch.cat(actual).tolist() == expected


def test_no_points_have_no_copies():
    counter, none = CopyCounter(), torch.zeros(0, dtype=torch.int64)
    batches = (none, torch.tensor([1, 1, 2]), none, torch.tensor([2, 1]), none)
    assert [counter(batch).tolist() for batch in batches] == [[], [0, 1, 0], [], [1, 2], []]


def test_the_numbers_of_copies_take_little_memory():
    """Of 200,000 points, half of them twice, in batches of 100: at most 32 bytes for each of the distinct ones."""
    keys = torch.randint(-(2**62), 2**62, (100_000,), generator=torch.Generator().manual_seed(0))
    counter = CopyCounter()
    numbers = torch.cat([counter(part) for part in torch.cat([keys, keys.flip(0)]).split(100)])
    assert torch.equal(numbers, torch.arange(2).repeat_interleave(100_000))
    assert sum(each.nbytes for table in counter._tables for each in table) <= 32 * 100_000
    assert len(counter._tables) < 18


def test_the_number_of_a_copy_is_one_of_the_columns():
    keys = example_keys(draw(9, 4), 9)
    columns = torch.arange(9) % 4
    expected = uniforms(keys, 4, 3, "purpose")[torch.arange(9), columns]
    assert torch.equal(uniforms_at(columns, keys, 3, "purpose"), expected)


STRIDED = {
    "a column of a table by columns": lambda: torch.randn(3, 30, dtype=torch.float64).T[:, :1],
    "a row turned": lambda: torch.randn(1, 30, dtype=torch.float64).T,
    "negated": lambda: torch._neg_view(torch.randn(30, 2, dtype=torch.float64)),
}


@pytest.mark.parametrize("case", STRIDED)
def test_numbers_of_64_bits_have_keys_whatever_their_strides(case):
    values = STRIDED[case]()
    keys = example_keys(values, 30)
    assert len(keys.unique()) == 30
    assert torch.equal(keys, example_keys(torch.tensor(values.tolist(), dtype=torch.float64), 30))


@pytest.mark.parametrize("shift", [0, 48, 60, 63])
def test_whole_numbers_with_few_bits_have_keys_of_all(shift):
    rows = torch.randint(0, 2, (2000, 40), generator=torch.Generator().manual_seed(0)).unique(dim=0)
    assert len(example_keys(rows << shift, len(rows)).unique()) == len(rows)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.uint8])
@pytest.mark.parametrize("terms", [1, 5, 20, 10_000])
def test_keys_of_many_numbers_are_those_of_single_rows(monkeypatch, dtype, terms):
    """Taken some rows and columns at a time, so that they need little memory."""
    values = (9 * draw(50, 7)).to(dtype)
    whole = example_keys(values, 50)
    monkeypatch.setattr("slu.data.fingerprint._TERMS", terms)
    assert torch.equal(example_keys(values, 50), whole)


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that was made, of those that are no views of a given one."""

    def __init__(self, given: Tensor) -> None:
        super().__init__()
        self._given, self.bytes = given, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            if isinstance(each, Tensor) and each.untyped_storage().data_ptr() != self._given.data_ptr():
                self.bytes = max(self.bytes, each.untyped_storage().nbytes())
        return made


@pytest.mark.parametrize("shape", [(1, 3_000_000), (3000, 1000), (3_000_000, 1)])
def test_keys_take_little_memory(shape):
    """Beside the keys, nothing larger than 1 MB, of which about 12 are there at once."""
    module._multipliers.cache_clear()
    values = torch.zeros(shape)
    with Largest(values) as largest:
        example_keys(values, len(values))
    assert largest.bytes <= max(1 << 20, 8 * len(values))
    cached = module._multipliers.cache_info()
    assert cached.maxsize <= 8 and cached.currsize > 0
