"""A group of one process is no group; a process of a larger one may fit alone."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader

from running import needs_processes, run_together
from slu import SLU
from slu.errors import ProcessError, SettingError
from slu.processes import Processes
from together import network, points


@pytest.fixture
def group_of_one(tmp_path):
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


def tensors_of(score) -> dict:
    return score.state.to_file()[0]


def fits() -> list:
    data = DataLoader(points(300, "classification"), batch_size=32)
    settings = [{"rank": 12}, {"rank": 8, "solver": "lanczos"}, {"rank": 8, "scale": "diagonal"}]
    return [SLU(network(), "classification", **each).fit(data) for each in settings]


def test_a_group_of_one_is_bit_equal_to_none(group_of_one):
    inside = fits()
    distributed.destroy_process_group()
    assert not distributed.is_initialized()
    for here, there in zip(inside, fits(), strict=True):
        one, other = tensors_of(here), tensors_of(there)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_group_needs_to_be_initialized():
    with pytest.raises(SettingError, match=r"needs torch\.distributed\.init_process_group first"):
        Processes(object())


MISSING = """
import datetime, torch, time
from together import network, parts, points
from running import tell
from slu import SLU
from slu.errors import ProcessError
torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = torch.distributed.get_rank()
method, data = SLU(network(), "classification", rank=4), parts(points(100, "classification"), rank, 2, "sampler")
if rank == 0:
    alone = method.fit(data, group=False).state.points
    try:
        method.fit(data)
    except ProcessError as reason:
        tell([alone, str(reason)])
else:
    time.sleep(12)
    tell(None)
"""

KILLED = """
import os, signal, torch
from together import network, parts, points
from running import group, tell
from slu import SLU
with group() as rank:
    def loader():
        for place, batch in enumerate(parts(points(200, "classification"), rank, 2, "sampler")):
            if rank == 1 and place == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch
    try:
        SLU(network(), "classification", rank=4).fit(loader())
    except Exception as reason:
        tell([type(reason).__name__, str(reason)])
"""


GROUPS = """
import datetime, sys, time
from torch import distributed
from running import tell
from slu.errors import ProcessError
from slu.processes import Processes

def exchanged(group, fails=False):
    processes = Processes(group)
    try:
        with processes.together("an exchange"):
            processes.check_same({"value": processes.rank if fails else 0})
            processes._looked = 0.0
            processes.check()
    except Exception as reason:
        return type(reason).__name__
    return "done"

def subgroup(ranks, **store):
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60), **store)
    return distributed.new_group(ranks, timeout=datetime.timedelta(seconds=5))

group = subgroup([0, 1])
rank, name = distributed.get_rank(), "" if distributed.get_rank() == 2 else group.group_name
told = [exchanged(group, fails=True), exchanged(group), exchanged(group)] if rank < 2 else []
if rank == 0:
    keys = group.get_group_store().num_keys()
told += [exchanged(group) for _ in range(10)] if rank < 2 else []
distributed.barrier()
left = group.get_group_store().num_keys() - keys if rank == 0 else 0
begun = time.monotonic()
told += [exchanged(group)] if rank == 0 else []  # the other does not come
waited = time.monotonic() - begun
distributed.barrier()
distributed.destroy_process_group()
group = subgroup([1, 2], store=distributed.FileStore(sys.argv[1], 3), rank=rank, world_size=3)
assert rank != 1 or group.group_name == name
told += [exchanged(group)] if rank > 0 else []
distributed.barrier()
distributed.destroy_process_group()
tell([told, left, waited])
"""


@needs_processes
def test_groups_of_one_name_after_each_other(tmp_path):
    (zero, left, waited), (one, _, _), (two, _, _) = run_together(GROUPS, 3, tmp_path / "store")
    assert zero == ["MismatchError", *["done"] * 12, "ProcessError"]
    assert one == ["MismatchError", *["done"] * 13]
    assert two == ["done"], "it has not met anybody before"
    assert left <= 0, "no keys are left of meetings"
    assert 4 < waited < 20, "as long as the group waits, not as its store"


@needs_processes
def test_a_process_that_does_not_come_is_named():
    alone, text = run_together(MISSING, 2)[0]
    assert alone > 30
    assert "process 0 of 2 waits for [1]: all processes of a group must make this call" in text
    assert "group=False" in text


@needs_processes
def test_a_killed_process_ends_the_others():
    told, other = run_together(KILLED, 2, seconds=60, check=False)
    assert other is None
    assert told is None or (told[0] == "ProcessError" and "lost the others" in told[1])  # or the launcher was sooner


class Played(Processes):
    """A process of some that meet in a store."""

    def __init__(self, store, rank: int, size: int = 2, timeout: float = 0.2) -> None:
        super().__init__()
        self.rank, self.size, self._given, self._patience = rank, size, store, timeout

    _store = property(lambda self: self._given)
    _timeout = property(lambda self: self._patience)
    _torch_group = property(lambda self: SimpleNamespace(group_name="played"))


def test_a_process_that_was_stopped_in_a_meeting_is_not_there(monkeypatch):
    """Or the next to come would go on to a sum in which nobody joins it."""
    store = distributed.HashStore()

    def ctrl_c(*_):
        raise KeyboardInterrupt

    first = Played(store, 0)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(first, "_wait_for", ctrl_c)
        first._meet()
    assert store.num_keys() == 1, "its count"
    with pytest.raises(ProcessError, match=r"process 1 of 2 waits for \[0\]"):
        Played(store, 1)._meet()
    both = [threading.Thread(target=Played(store, rank)._meet) for rank in (0, 1)]
    for each in both:
        each.start()
    for each in both:
        each.join(10)
    assert store.check(["slu/played/2/1/0", "slu/played/2/1/1"])


@pytest.mark.parametrize("look", [0.05, 10.0])
def test_processes_that_give_up_waiting_name_the_one_that_did_not_come_and_not_each_other(monkeypatch, look):
    """The first to give up takes its key away while others still wait, or look who is missing."""
    monkeypatch.setattr("slu.processes._LOOK", look)
    store, told = distributed.HashStore(), {}

    def meet(rank, timeout):
        try:
            Played(store, rank, 3, timeout)._meet()
        except ProcessError as reason:
            told[rank] = str(reason)

    first, second = (threading.Thread(target=meet, args=(rank, 0.5 + 0.3 * rank)) for rank in (0, 1))
    first.start()
    while not store.check(["slu/played/3/1/0"]):
        time.sleep(0.01)
    second.start()
    for each in (first, second):
        each.join(10)
    told = {rank: words.partition(": ")[0] for rank, words in told.items()}
    assert told == {rank: f"process {rank} of 3 waits for [2]" for rank in (0, 1)}
    # Control: those that went before this one came are away.
    meet(2, 0.2)
    assert "waits for [0, 1]" in told[2]


def test_a_process_that_came_is_not_named_in_the_warning(monkeypatch, caplog):
    monkeypatch.setattr("slu.processes._LOOK", 10.0)
    monkeypatch.setattr("slu.processes._PATIENCE", 0.4)
    store = distributed.HashStore()
    later = threading.Timer(0.1, store.set, ("slu/played/3/1/1", "here"))
    later.start()
    with caplog.at_level("WARNING"), pytest.raises(ProcessError):
        Played(store, 0, 3, 0.8)._meet()
    assert "waits for [2]: " in caplog.text and "[1" not in caplog.text
