"""Points pooled by several processes: which they are, and how many are sent for them."""

import pytest
import torch

from slu.data.reservoir import HeldPoint, Reservoir
from threads import in_threads

MOST = 20


def reservoir(numbers, *, width: int = 2, threshold: float = 1.0, batch_size: int = 4) -> Reservoir:
    """Points whose content is their number, padded with zeros to some width."""
    held = Reservoir(threshold, MOST, batch_size=batch_size, seen=len(numbers))
    held.add([HeldPoint(u, torch.tensor([[u] + [0.0] * (width - 1)]), None) for u in numbers])
    return held


def drawn(count: int, seed: int) -> list[float]:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()


def pooled(reservoirs, **how):
    """What all get, the same everywhere, and how many points each of them sent."""

    def work(processes):
        result = reservoirs[processes.rank].pooled(processes, **how)
        return result, processes.told.get("calibration points", [])

    every = in_threads(work, len(reservoirs))
    first, sent = every[0]
    for other, _ in every:
        assert other.numbers == first.numbers
        assert (other.threshold, other.batch_size) == (first.threshold, first.batch_size)
        for one, two in zip(first.batches(), other.batches(), strict=True):
            assert torch.equal(one[0], two[0])
    return first, [0 if each is None else len(each) for each in sent]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("counts", [(50, 50, 50), (50, 3, 0), (5, 4, 3)])
def test_only_the_points_that_are_pooled_are_sent(counts, given):
    shards = [drawn(count, seed) for seed, count in enumerate(counts)]
    result, sent = pooled([reservoir(each) for each in shards], given=given)
    every = sorted(u for each in shards for u in each)
    assert result.numbers == every[:MOST]
    assert result.threshold == (every[MOST] if len(every) > MOST else 1.0)
    assert sum(sent) == len(result) == min(MOST, len(every))
    assert all(float(point.inputs[0, 0]) == pytest.approx(point.u) for point in result.points)


@pytest.mark.parametrize("once", [False, True])
def test_a_point_that_several_have_is_sent_by_one_where_it_counts_once(once):
    common, own = drawn(6, 1), [drawn(3, 2), drawn(3, 3)]
    result, sent = pooled([reservoir(common + each) for each in own], given=False, once=once)
    assert result.numbers == sorted(common * (1 if once else 2) + own[0] + own[1])
    assert sent == ([9, 3] if once else [9, 9])


def test_points_that_all_were_given_are_not_sent():
    numbers = drawn(50, 1)
    result, sent = pooled([reservoir(numbers), reservoir(numbers[::-1]), reservoir(numbers)], given=True)
    assert result.numbers == sorted(numbers)[:MOST]
    assert sent == []


@pytest.mark.parametrize("other", [{"width": 3}, {"batch_size": 8}, {"threshold": 2.0}])
def test_of_points_in_other_batches_those_of_the_first_process_are_taken(other):
    numbers = drawn(10, 1)
    result, sent = pooled([reservoir(numbers), reservoir(numbers, **other)], given=True)
    assert result.numbers == sorted(numbers)
    assert [len(inputs) for inputs, _ in result.batches()] == [4, 4, 2] and result.threshold == 1.0
    assert all(inputs.shape[1] == 2 for inputs, _ in result.batches())
    assert sent == [10, 0]
