"""Padding is found by the names of the arguments that inputs are for, in a dict or by position."""

import pytest
import torch
from torch import nn

from slu.data import batches
from slu.data.fingerprint import example_keys
from slu.data.masks import position_mask, without_padding
from slu.data.reading import BatchReader
from slu.data.signature import Signature

SEQUENCE = torch.arange(12.0).reshape(2, 3, 2)
PADDING = torch.tensor([[False, True, True], [False, False, False]])
LABELS = torch.tensor([0, 1])


class Masked(nn.Module):
    def forward(self, sequence, padding_mask):
        return sequence.sum(1)


def read(*parts):
    (batch,) = batches(parts, None, reader=BatchReader(Signature.of(Masked())))
    return batch


def test_a_mask_by_position():
    inputs = read(SEQUENCE, PADDING, LABELS).inputs
    assert torch.equal(position_mask(inputs), ~PADDING)
    assert position_mask((SEQUENCE, PADDING)) is None, "without names nothing says that it is one"


def test_what_stands_at_padding_changes_no_key():
    rubbish = torch.where(PADDING[..., None], 7.0, SEQUENCE)
    one, other = read(SEQUENCE, PADDING, LABELS), read(rubbish, PADDING, LABELS)
    assert torch.equal(example_keys(one.inputs, 2), example_keys(other.inputs, 2))
    pair, other_pair = (one.inputs, one.targets), (other.inputs, other.targets)
    assert torch.equal(example_keys(pair, 2), example_keys(other_pair, 2))
    assert not torch.equal(example_keys(one.inputs, 2), example_keys(read(SEQUENCE + 1, PADDING, LABELS).inputs, 2))


def test_padding_is_replaced_by_zeros():
    sequence, mask = without_padding(read(SEQUENCE, PADDING, LABELS).inputs)
    assert not bool(sequence[PADDING].any())
    assert torch.equal(sequence[~PADDING], SEQUENCE[~PADDING])
    assert not bool(mask.any())


def test_the_positions_of_outputs_are_those_of_the_decoder():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    inputs = {"attention_mask": torch.ones(2, 3, dtype=torch.long), "decoder_input_ids": mask}
    assert position_mask(inputs) is None, "the mask of the encoder is none of theirs, though it has their shape"
    assert torch.equal(position_mask({**inputs, "decoder_attention_mask": mask}), mask.bool())
    assert torch.equal(position_mask({"attention_mask": mask}), mask.bool())


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (torch.tensor([[1, 1, 0], [0, 0, 0]]), [[True, True, False], [False, False, False]]),
        (torch.tensor([[1.0, 1.0, 0.0]]), [[True, True, False]]),
        (torch.tensor([[0.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]]), [[True, True, False], [True, True, True]]),
    ],
)
def test_masks_of_numbers_are_ones_where_a_position_counts_or_are_added(mask, expected):
    assert position_mask({"attention_mask": mask}).tolist() == expected
