"""The places of a process' points against what samplers give themselves, for every process."""

from itertools import product

import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from slu.data.dealing import COPY, check_dealt, dealt, places
from slu.errors import DataError


class Numbers(Dataset):
    """Every point is its own place in the data set."""

    def __init__(self, points):
        self.points = points

    def __len__(self):
        return self.points

    def __getitem__(self, place):
        return torch.as_tensor(place)


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def check(loaders, order, *, whole=True):
    """What the loaders of all processes read is at the places that are said, in the order of one process."""
    covered = []
    for loader in loaders:
        read = [int(each) for batch in loader for each in batch]
        said, own = dealt(loader), places(loader)
        assert said.dtype == torch.int64 and len(said) == len(read)
        assert said[said != COPY].tolist() == own.tolist()
        assert all(order[place] == point for place, point in zip(said.tolist(), read, strict=True) if place != COPY)
        # Copies are at the end, where the fit leaves them out by their number.
        assert not bool((said[: len(own)] == COPY).any())
        covered += own.tolist()
    assert len(set(covered)) == len(covered), "a point is counted twice"
    points = len(order)
    if whole:
        assert sorted(covered) == list(range(points))
    read = {int(each) for loader in loaders for batch in loader for each in batch}
    assert {order[place] for place in covered} == read, "a point that was read is left out, or the reverse"


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drops", list(product([False, True], [False, True])))
@pytest.mark.parametrize("points", [1, 3, 4, 12, 13, 14, 15, 29])
def test_distributed_sampler(points, drops, shuffle):
    data, (sampler_drops, loader_drops) = Numbers(points), drops
    for size, batch in product([1, 2, 4, 5], [1, 3, 4]):
        samplers = [
            DistributedSampler(data, size, rank, shuffle=shuffle, drop_last=sampler_drops, seed=3)
            for rank in range(size)
        ]
        loaders = [DataLoader(data, batch, sampler=each, drop_last=loader_drops) for each in samplers]
        order = list(DistributedSampler(data, 1, 0, shuffle=shuffle, seed=3))
        check(loaders, order, whole=not (sampler_drops or loader_drops))


def test_distributed_sampler_in_a_batch_sampler_of_the_users_own():
    data = Numbers(11)
    samplers = [DistributedSampler(data, 3, rank, shuffle=False) for rank in range(3)]
    batched = [BatchSampler(each, 2, drop_last=False) for each in samplers]
    check([DataLoader(data, batch_sampler=each) for each in batched], range(11))
    check([DataLoader(data, sampler=each, batch_size=None) for each in batched], range(11))


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_accelerate(shuffle, split, drop, even):
    for points, size, batch in product([1, 2, 5, 8, 12, 13, 23, 24], [2, 3, 4], [1, 2, 3, 4, 12]):
        if split and batch % size:
            continue
        data = Numbers(points)

        def drawn():
            return torch.Generator().manual_seed(5)

        loaders = [
            prepare_data_loader(
                DataLoader(data, batch, shuffle=shuffle, drop_last=drop, generator=drawn()),
                num_processes=size, process_index=rank, split_batches=split, even_batches=even,
            )
            for rank in range(size)
        ]  # fmt: skip
        if shuffle:
            order = [int(each) for each in DataLoader(data, 1, shuffle=True, generator=drawn())]
        else:
            order = range(points)
        for loader in loaders:  # what a pass over a shuffled loader draws depends on those before it
            loader.read_again = [batch.tolist() for batch in loader]
        check([Repeated(each) for each in loaders], order, whole=not drop)


class Repeated:
    """A loader that gives what it gave before."""

    def __init__(self, loader):
        self.batch_sampler = loader.batch_sampler
        self.read = loader.read_again

    def __iter__(self):
        return iter(self.read)


def test_accelerate_with_a_batch_sampler_as_sampler():
    data = Numbers(11)
    loaders = [
        prepare_data_loader(
            DataLoader(data, sampler=BatchSampler(SequentialSampler(data), 2, drop_last=False), batch_size=None),
            num_processes=2, process_index=rank,
        )
        for rank in range(2)
    ]  # fmt: skip
    check(loaders, range(11))


class Reversed(DistributedSampler):
    def __iter__(self):
        return iter(list(super().__iter__())[::-1])


class LongestFirst(BatchSampler):
    pass


def prepared(loader, **settings):
    return prepare_data_loader(loader, num_processes=2, process_index=1, **settings)


DATA = Numbers(10)
DEALT = DistributedSampler(DATA, 2, 1, shuffle=False)
UNKNOWN = {
    "a plain loader": lambda: DataLoader(DATA, 2),
    "single points": lambda: DataLoader(DATA, None, sampler=DEALT),
    "an order of its own": lambda: DataLoader(DATA, 2, sampler=Reversed(DATA, 2, 1)),
    "batches of its own": lambda: DataLoader(DATA, batch_sampler=LongestFirst(DEALT, 2, False)),
    "as workers are done": lambda: DataLoader(DATA, 2, sampler=DEALT, num_workers=2, in_order=False),
    "dealt twice": lambda: prepared(DataLoader(DATA, 2, sampler=DEALT)),
    "batches of its own, prepared": lambda: prepared(
        DataLoader(DATA, batch_sampler=LongestFirst(RandomSampler(DATA), 2, False))
    ),
    "a stream": lambda: prepared(DataLoader(Streamed(), 2)),
    "one process reads for all": lambda: prepared(
        DataLoader(DATA, 2, sampler=DEALT), dispatch_batches=True, put_on_device=True, device=torch.device("cpu")
    ),
    "batches that are skipped": lambda: skip_first_batches(prepared(DataLoader(DATA, 2)), 1),
    "a tensor": lambda: torch.zeros(3, 2),
    "a dict": lambda: {"x": torch.zeros(3)},
    "a list": lambda: [torch.zeros(3, 2)],
    "an iterator": lambda: iter([torch.zeros(3, 2)]),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_rather_than_wrong(name):
    loader = UNKNOWN[name]()
    assert places(loader) is None and dealt(loader) is None


def test_control_a_wrong_place_is_seen():
    loaders = [DataLoader(Numbers(6), 2, sampler=DistributedSampler(Numbers(6), 2, 0, shuffle=False)) for _ in range(2)]
    with pytest.raises(AssertionError, match="counted twice"):
        check(loaders, range(6))
    with pytest.raises(AssertionError):
        check(loaders[:1], [1, 0, 3, 2, 5, 4])


@pytest.mark.parametrize("whole", [False, True])
def test_a_part_of_another_number_of_processes_is_refused(whole):
    data = Numbers(40)
    sampler = DistributedSampler(data, 4, 1, shuffle=False)
    loader = DataLoader(data, 5, sampler=sampler)
    if whole:  # of data that take the places of a whole batch
        loader = DataLoader(data, batch_size=None, sampler=BatchSampler(sampler, 5, drop_last=False))
    check_dealt(loader, 4)
    with pytest.raises(DataError, match="deals points out to 4 processes, and the group has 2"):
        check_dealt(loader, 2)
    check_dealt([torch.ones(2)], 2)
