"""Sources: what they read, subsets of them, and walking through them."""

import pytest
import torch

from slu.errors import DataError
from slu.seeds import stream
from slu_experiments.data import Memory, Source, Subset, batches, stack


def memory(n=7):
    pixels = torch.randint(0, 256, (n, 1, 3, 3), generator=stream(0, "pixels"), dtype=torch.uint8)
    return Memory(pixels, torch.arange(n)), pixels


def test_bytes_are_read_as_shares_of_255_and_other_numbers_as_they_are():
    source, pixels = memory()
    images, labels = source.read(torch.tensor([5, 0, 5]))
    assert isinstance(source, Source)
    assert (images.dtype, images.shape) == (torch.float32, (3, *source.shape))
    assert torch.equal(images, pixels[[5, 0, 5]].float() / 255)
    assert labels.tolist() == [5, 0, 5]
    numbers = torch.randn(4, 2, generator=stream(0, "numbers"), dtype=torch.float64)
    assert torch.equal(Memory(numbers, numbers).read(torch.arange(4))[0], numbers.float())


def test_what_was_read_is_the_readers_own():
    source, _ = memory()
    source.read(torch.tensor([0]))[0].zero_()
    source.read(torch.tensor([2]))[1].zero_()
    assert source.read(torch.tensor([0]))[0].any() and int(source.read(torch.tensor([2]))[1]) == 2


def test_a_subset_of_a_subset_keeps_its_order():
    source, _ = memory()
    few = Subset(Subset(source, [6, 1, 4, 2]), torch.tensor([3, 0]))
    assert (len(few), few.shape) == (2, source.shape)
    assert few.read(torch.tensor([1, 0, 1]))[1].tolist() == [6, 2, 6]


@pytest.mark.parametrize("indices", [[7], [-1], [[0]], [0.5]])
def test_wrong_indices_are_refused(indices):
    source, _ = memory()
    for each in (source, Subset(source, range(7))):
        with pytest.raises(DataError, match="expected indices"):
            each.read(torch.tensor(indices))


def test_a_subset_of_points_that_are_not_there_is_refused():
    with pytest.raises(DataError, match="from 0 to 6"):
        Subset(memory()[0], [3, 7])


@pytest.mark.parametrize("limit", [None, 1, 4, 100])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_batches_and_stack_give_the_points_in_order(limit, size):
    source, pixels = memory()
    images, labels = stack(source, limit)
    n = min(limit or 7, 7)
    assert torch.equal(images, pixels[:n].float() / 255) and labels.tolist() == list(range(n))
    pieces = list(batches(source, size, limit))
    assert all(len(piece) <= size for piece, _ in pieces)
    assert torch.equal(torch.cat([piece for piece, _ in pieces]), images)


def test_no_points_are_refused():
    with pytest.raises(DataError, match="leaves none"):
        stack(memory()[0], 0)
    with pytest.raises(DataError, match="one or more"):
        Memory(torch.zeros(0, 2), torch.zeros(0))
    with pytest.raises(DataError, match="as many targets"):
        Memory(torch.zeros(3, 2), torch.zeros(2))
