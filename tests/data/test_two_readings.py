"""What can be read in two ways is refused: as inputs or targets, as one batch or several."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from read_batches import Masked, One, X, Y, reader, same
from slu.data import BatchReader, Signature
from slu.data.format import Format
from slu.errors import DataError


class Named(nn.Module):
    def forward(self, x, *, mask=None):
        return x if mask is None else x * mask


class Behind(nn.Module):
    def forward(self, x, features=False, mask=None, labels=None, verbose: bool | None = None):
        return x if mask is None else x * mask


class Lengths(nn.Module):
    def forward(self, x, lengths=None):
        return x


class Heated(nn.Module):
    def forward(self, x, temperature=None):
        return x


def test_inputs_by_name_only_and_behind_a_flag_are_inputs():
    assert Signature.of(Behind()).inputs == ("x", "mask"), "flags and targets are none"
    for model in (Named(), Behind()):
        assert Signature.of(model).others(1) == ("mask",)
        assert same(reader(model).read((X, Y), 0), (X, Y))
        with pytest.raises(DataError, match=r"Write a dict by the names of the arguments, \{'x': …, 'mask': …\}, for"):
            reader(model).read((X, X), 0)


def test_lengths_and_integer_targets_cannot_be_told_apart():
    with pytest.raises(DataError, match=r"such as lengths, or the targets. Write \(\(x, lengths\), None\), or a dict"):
        reader(Lengths()).read((X, Y), 0)
    known = reader(Lengths())
    known.read(((X,), Y), 0)
    with pytest.raises(DataError, match="such as lengths"):
        known.read((X, Y), 0, learn=False)
    assert same(reader(Lengths()).read((X, X[:, 0]), 0), (X, X[:, 0])), "lengths are integers"


@pytest.mark.parametrize("fitted", [X, (X, Y)])
def test_what_was_no_target_in_the_fit_is_none_in_a_query(fitted):
    known = reader(Heated())
    known.read(fitted, 0)
    with pytest.raises(DataError, match=r"\(\(x, temperature\), None\)"):
        known.read((X, X[:, 0]), 0, learn=False)
    with pytest.raises(DataError, match=r"\(\(x, temperature\), targets\)"):
        known.read((X, X[:, 0], Y), 0, learn=False)
    assert same(known.read(((X, X[:, 0]), Y), 0, learn=False), ((X, X[:, 0]), Y))


def test_a_query_teaches_no_format():
    known = reader(Masked())
    known.read(X, 0)
    before = Format.from_plain(known.format.to_plain())
    known.read(((X,), torch.ones(4, 3)), 0, learn=False)
    assert known.format == before
    with pytest.raises(DataError, match="two ways"):
        known.read((X, torch.ones(4, 3)), 0, learn=False)


def test_two_inputs_of_the_fit_are_two_at_another_length():
    ids, segments = torch.ones(4, 7, dtype=torch.long), torch.zeros(4, 7, dtype=torch.long)
    known = reader(Masked())
    known.read(((ids, segments), Y), 0)
    shorter = (ids[:, :5], segments[:, :5])
    assert same(known.read(shorter, 0, learn=False), (shorter, None))
    assert same(known.read((*shorter, Y), 0, learn=False), (shorter, Y))
    assert known.is_one_batch(list(shorter))


def test_targets_of_another_number_of_points_are_refused():
    with pytest.raises(DataError, match=r"batch 2 has 3 targets, and its inputs float32 \(4, 2\) have 4 rows"):
        reader(One()).read((X, Y[:3]), 2)
    with pytest.raises(DataError, match="has 3 targets"):
        reader(One()).read({"x": X, "labels": Y[:3]}, 0)


def test_a_list_of_equal_tensors_is_refused_where_it_may_be_one_batch():
    known = reader(Masked())
    known.read((X, Y), 0)
    for each, data in (
        (reader(One()), [X, X]), (reader(Masked()), [X, X]), (reader(Masked()), [X, X, X]), (known, [X, X])
    ):  # fmt: skip
        with pytest.raises(DataError, match=r"and as \d batches; .*\(\(first, second\), None\) if both are inputs"):
            each.is_one_batch(data)
    assert not reader(Masked()).is_one_batch([X] * 4), "more than its inputs and targets"
    column = X[:, :1]
    known = reader(One())
    known.read(column, 0)
    with pytest.raises(DataError, match="one batch of inputs and targets"):
        known.is_one_batch([column, column])
    known = reader(One())
    known.read((X, Y), 0)
    assert not known.is_one_batch([X, X]), "the model takes one input, and the targets are known to be others"
    assert not known.is_one_batch([X[:, :1], X[:, :1]]), "sizes may vary"


def test_any_number_of_arguments_may_take_a_mask():
    class Any(nn.Module):
        def forward(self, *args):
            return args[0]

    reader = BatchReader(Signature.of(Any()))
    reader.read((torch.zeros(4, 2), torch.arange(4)), 0)
    with pytest.raises(DataError, match="can be read in two ways"):
        reader.read((torch.zeros(4, 2), torch.ones(4, 2, dtype=torch.bool)), 1, learn=False)


def test_a_loader_that_is_a_dataclass_is_a_loader():
    @dataclasses.dataclass
    class Loader:
        size: int = 4

        def __iter__(self):
            yield torch.zeros(self.size, 2), torch.arange(self.size)

    assert not BatchReader().is_one_batch(Loader())
