"""Scores that several processes gather are those of one on all data."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gathered
from running import needs_processes, run_together
from slu.core.gathering import scores_of_all
from slu.errors import DataError, EmptyDataError, SettingError

SCRIPT = Path(gathered.__file__)


def check(told, expected, *, exact=False):
    """Tensors, pairs and dicts of them; batches that were cut elsewhere differ by rounding."""
    bound = 0.0 if exact else 1e-9
    torch.testing.assert_close(told, expected, rtol=bound, atol=0.0, equal_nan=True)


def dropped(size):
    """The places of the points that remain where every process drops its last, smaller batch."""
    each = -(-gathered.POINTS // size) // gathered.BATCH * gathered.BATCH
    return [place for place in range(gathered.POINTS) if place // size < each]


def cut(size):
    """The places of the points, rank by rank, where every batch lacks its last."""
    places = range(gathered.POINTS)
    dealt = [list(DistributedSampler(places, size, rank, shuffle=False)) for rank in range(size)]
    return [own[i] for own in dealt for i in range(len(own)) if i % gathered.BATCH < gathered.BATCH - 1]


@pytest.fixture(scope="module")
def two():
    """What two processes told; one run for all tests, since a start takes seconds."""
    return run_together(SCRIPT, 2, "gathered", "of_positions", "not_finite", "failing")


@needs_processes
def test_scores_of_two_processes_are_those_of_one(two):
    check_gathered([each["gathered"] for each in two])


@needs_processes
@pytest.mark.slow
def test_scores_of_three_processes_are_those_of_one():
    results = run_together(SCRIPT, 3, "gathered", "of_a_group")
    check_gathered([each["gathered"] for each in results])
    score, queries = gathered.scored()
    first, outside, last = (each["of_a_group"] for each in results)
    check(first, score(queries))
    check(last, first, exact=True)
    assert "this process is not in the group" in outside


def check_gathered(results):
    size = len(results)
    score, queries = gathered.scored()
    data = DataLoader(TensorDataset(queries), gathered.BATCH)
    plain = score(data)
    for rank, told in enumerate(results):
        for name, ask in gathered.QUERIES.items():
            check(told[name], ask(score, data), exact=name.startswith(("pvalue", "flag")))
        order = list(DistributedSampler(range(len(queries)), size, rank, shuffle=False))
        check(told["own"], plain[order])
        check(told["group=False"], plain[order])
        mixed = list(DistributedSampler(range(len(queries)), 1, 0, shuffle=True, seed=3))
        check(told["shuffled"], plain[mixed])
        check(told["dropped"], plain[dropped(size)])
        check(told["few"], plain[:1])
        for name in ("accelerate even", "accelerate uneven", "accelerate split"):
            check(told[name], plain)
        for name in ("by rank", "one batch", "a generator"):
            check(told[name], plain[: 9 * size])
        check(told["one has none"], plain[9 : 9 * size])
        check(told["fewer than dealt"], plain[cut(size)])
        for name in results[0]:
            if name not in ("own", "group=False", "a group of one", "only here"):
                check(told[name], results[0][name], exact=True)
    check(results[0]["a group of one"], plain[::size])
    check(results[0]["only here"], plain)


@needs_processes
def test_positions(two):
    score, texts = gathered.tagged()
    data = [*texts[0::2], *texts[1::2]]
    for told in (each["of_positions"] for each in two):
        # Of 7 positions, though one process has no text of more than 5.
        assert told["positions"].shape == (12, 7)
        check(told["positions"], score(data))
        check(told["reduced"], score(data, reduce="max"))
        check(told["pvalue"], score.pvalue(data), exact=True)
        check(told["flag"], score.flag(data, false_alarms=0.3), exact=True)
        check(told["read_all"], score.read_all(data))


@needs_processes
def test_points_that_are_not_finite(two):
    results = [each["not_finite"] for each in two]
    assert [len(each["warnings"]) for each in results] == [0, 1]
    assert "1 of 4 points are not finite" in results[1]["warnings"][0]
    for told in results:
        assert told["scores"].isposinf().tolist() == [place == 3 for place in range(8)]


ENDS = {
    "loader": ("DataError", "process 1 of 2: the loader failed at batch 1: OSError: the disk is gone"),
    "early": ("DataError", "process 1 of 2: the loader failed at batch 1: OSError: the disk is gone"),
    "empty": ("EmptyDataError", "the loaders of all 2 processes gave no batch"),
    "shape": ("ModelCallError", "process 0 of 2: "),
    "setting": ("MismatchError", "call is 'flag(false_alarms=7.0)' in process 0, in process 1"),
    "other call": ("MismatchError", "reading='variance'"),
    "same points": ("DataError", "processes 0 and 1 score the same points"),
    "after": ("none", ""),
}


@needs_processes
def test_what_ends_one_process_ends_all_with_the_same_error(two):
    first, second = (each["failing"] for each in two)
    for name, (kind, text) in ENDS.items():
        assert first[name][:2] == second[name][:2], name
        assert first[name][0] == kind and text in first[name][1], (name, first[name])
    # The other process would have read for a minute.
    assert first["early"][2] < 20


def test_gather_without_a_group_is_the_plain_call():
    score, queries = gathered.scored()
    for ask in gathered.QUERIES.values():
        check(ask(score, queries, gather=True), ask(score, queries), exact=True)
    with pytest.raises(EmptyDataError, match="the loader gave no batch"):
        score([], gather=True)


def test_a_group_without_gather_is_refused():
    score, queries = gathered.scored()
    with pytest.raises(SettingError, match="pass gather=True as well"):
        score(queries, group=object())
    with pytest.raises(SettingError, match=r"needs torch\.distributed\.init_process_group first"):
        score(queries, gather=True, group=object())
    check(score(queries, group=False), score(queries), exact=True)


class Told:
    """Processes that have told already."""

    def __init__(self, told):
        self.told, self.size = told, len(told)

    def gathered(self, what, value):
        return self.told


def given(scores, places, order=None):
    return scores, places, order


def test_the_order_of_all():
    first, second = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([2.0, 4.0, 1.0])
    dealt = [torch.tensor([0, 2, 4]), torch.tensor([1, 3, -1])]
    (scores,) = scores_of_all(Told([given([first], dealt[0]), given([second], dealt[1])]), [], None)
    assert scores.tolist() == [1, 2, 3, 4, 5]
    (scores,) = scores_of_all(Told([given([first], dealt[0]), given([second], None)]), [], None)
    assert scores.tolist() == [1, 3, 5, 2, 4, 1]
    # One without points needs no places.
    (scores,) = scores_of_all(Told([given([], None), given([second], dealt[1])]), [], None)
    assert scores.tolist() == [2, 4]
    with pytest.raises(DataError, match="processes 1 and 2 score the same points"):
        scores_of_all(Told([given([], None), given([first], dealt[0]), given([first], dealt[0])]), [], None)
    with pytest.raises(EmptyDataError, match="all 2 processes"):
        scores_of_all(Told([given([], None), given([], dealt[0][:0])]), [], None)
    places = [given([first], dealt[0], {"epoch": 0}), given([second], dealt[1], {"epoch": 1})]
    with pytest.raises(DataError, match="samplers of processes 0 and 1 have other orders"):
        scores_of_all(Told(places), [], None)
