"""A fit that is interrupted, however it happens, goes on and ends in the same numbers."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from matrix import step
from shorthand import paper_slu
from slu import SLU, Checkpoint, Lanczos
from slu.artifacts import read, read_newest, write
from slu.artifacts.checkpoint import VERSION
from slu.errors import (
    DamagedFileError,
    DataError,
    MismatchError,
    OutOfMemoryError,
    SettingError,
    StorageError,
)

KILLS, SEED = 60 // step(3), 20_240


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))


def inputs(points: int = 90) -> torch.Tensor:
    return torch.randn(points, 8, generator=torch.Generator().manual_seed(1))


class Loader:
    """Three batches a pass; fails when its `fail`-th batch is asked for, and counts them."""

    def __init__(self, fail: int = 0, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.batches, self._fail, self._error = 0, fail, error

    def __iter__(self):
        for batch in inputs().split(30):
            self.batches += 1
            if self.batches == self._fail:
                raise self._error("stop")
            yield batch


SETTINGS = {"rank": 12, "sketch_size": 60, "solver": "lanczos"}
"""Lanczos, which reads the data once a step; the stream's own tests are in test_slu_stream."""


def method(**settings) -> SLU:
    return paper_slu(model(), "classification", **(SETTINGS | settings))


@pytest.mark.parametrize(
    "settings", [{}, {"solver": Lanczos(precondition=5)}, {"solver": Lanczos(keep=0.9)}, {"curvature": "fisher"}]
)
@pytest.mark.parametrize("fail", [1, 4, 18, 36])
def test_an_interrupted_fit_ends_bit_identical(tmp_path, settings, fail):
    expected = method(**settings).fit(Loader())
    with pytest.raises(KeyboardInterrupt):
        method(**settings).fit(Loader(fail), checkpoint=tmp_path / "run")
    rest = Loader()
    again = method(**settings).fit(rest, checkpoint=tmp_path / "run")
    assert torch.equal(again.state.subspace.basis, expected.state.subspace.basis)
    assert rest.batches == 3 * (12 - (fail - 1) // 3), "steps that were done are not done again"
    assert again.diagnostics.passes == 12
    assert again.diagnostics.points == 90 - 19 == expected.diagnostics.points


def test_a_fit_interrupted_many_times_ends_bit_identical(tmp_path):
    expected = method().fit(Loader())
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            method().fit(Loader(fail=7), checkpoint=tmp_path / "run")
    assert torch.equal(
        method().fit(Loader(), checkpoint=tmp_path / "run").state.subspace.basis, expected.state.subspace.basis
    )


def test_a_finished_checkpoint_reads_the_data_once_to_compare_them(tmp_path):
    expected = method().fit(Loader(), checkpoint=tmp_path / "run")
    compared = Loader()
    again = method().fit(compared, checkpoint=tmp_path / "run")
    assert compared.batches == 3
    assert torch.equal(again(inputs()), expected(inputs()))
    assert str(again.diagnostics) == str(expected.diagnostics)


def test_a_checkpoint_changes_no_number(tmp_path):
    plain, kept = method().fit(Loader()), method().fit(Loader(), checkpoint=Checkpoint(tmp_path / "run", every=0))
    assert torch.equal(plain.state.subspace.basis, kept.state.subspace.basis)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"rank": 11}, "rank"),
        ({"seed": 1}, "seed"),
        ({"sketch_size": 61}, "sketch"),
        ({"params": "0.*"}, "params"),
        ({"solver": "stream"}, "solver"),
        ({"scale": "diagonal"}, "scale"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(tmp_path, other, named):
    interrupt(tmp_path / "run")
    with pytest.raises(MismatchError, match=f"its {named} is"):
        method(**other).fit(Loader(), checkpoint=tmp_path / "run")


def test_a_checkpoint_of_other_weights_is_refused(tmp_path):
    interrupt(tmp_path / "run")
    changed = model()
    with torch.no_grad():
        changed[2].bias[0] += 1e-6
    with pytest.raises(MismatchError, match=r"the values of 2\.bias have changed"):
        paper_slu(changed, "classification", **SETTINGS).fit(Loader(), checkpoint=tmp_path / "run")


def test_a_checkpoint_of_other_data_is_refused(tmp_path):
    interrupt(tmp_path / "run")
    with pytest.raises(MismatchError, match=r"begun on other data.* had 90 points in the run.* here they have 91"):
        method().fit(inputs(91), checkpoint=tmp_path / "run")
    with pytest.raises(MismatchError, match=r"begun on other data.*content"):
        method().fit(inputs() + 1, checkpoint=tmp_path / "run")


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path):
    interrupt(tmp_path / "run", every=0.0)
    cut(tmp_path / "run")
    expected = method().fit(Loader())
    with pytest.warns(UserWarning, match="going on from the one before"):
        again = method().fit(Loader(), checkpoint=tmp_path / "run")
    assert torch.equal(again.state.subspace.basis, expected.state.subspace.basis)


def test_falling_back_never_costs_the_whole_generation(tmp_path):
    """The damaged newest one is put aside, or the next write would put it in the whole one's place."""
    interrupt(tmp_path / "run", every=0.0)
    cut(tmp_path / "run")
    with pytest.warns(UserWarning, match="going on from the one before") as warned:
        assert read_newest(tmp_path / "run") is not None
    assert len(warned) == 1
    assert (tmp_path / "run.damaged").exists()
    assert read_newest(tmp_path / "run") is not None, "killed before the next write, it is still there"


def test_a_disk_that_fails_ends_no_fit_and_hides_no_interrupt(tmp_path, monkeypatch):
    def full(*_, **__):
        raise StorageError("the disk is full")

    monkeypatch.setattr("slu.artifacts.checkpoint.write_generation", full)
    expected = method().fit(Loader())
    with pytest.warns(UserWarning, match="the disk is full"):
        again = method().fit(Loader(), checkpoint=Checkpoint(tmp_path / "run", every=0.0))
    assert torch.equal(again.state.subspace.basis, expected.state.subspace.basis)
    with pytest.warns(UserWarning, match="the disk is full"), pytest.raises(KeyboardInterrupt):
        method().fit(Loader(fail=17), checkpoint=tmp_path / "run")


def test_a_linked_checkpoint_stays_where_the_link_leads(tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "scratch" / "run")
    method().fit(Loader(), checkpoint=Checkpoint(tmp_path / "run", every=0.0))
    assert (tmp_path / "run").is_symlink()
    assert {each.name for each in (tmp_path / "scratch").iterdir()} == {"run", "run.previous"}
    compared = Loader()
    method().fit(compared, checkpoint=tmp_path / "run")
    assert compared.batches == 3, "it is finished"


def test_two_damaged_checkpoints_are_refused_with_the_cure(tmp_path):
    interrupt(tmp_path / "run", every=0.0)
    cut(tmp_path / "run")
    cut(tmp_path / "run.previous")
    with pytest.raises(DamagedFileError, match="delete both"):
        method().fit(Loader(), checkpoint=tmp_path / "run")


def test_a_path_that_cannot_be_written_is_found_before_the_fit(tmp_path):
    unread = Loader()
    with pytest.raises(StorageError, match="no folder"):
        method().fit(unread, checkpoint=tmp_path / "missing" / "run")
    assert unread.batches == 0


def test_a_loader_that_fails_names_the_batch_and_keeps_the_checkpoint(tmp_path):
    with pytest.raises(DataError, match="batch 1: RuntimeError: stop"):
        method().fit(Loader(fail=8, error=RuntimeError), checkpoint=tmp_path / "run")
    rest = Loader()
    method().fit(rest, checkpoint=tmp_path / "run")
    assert rest.batches == 30, "two of twelve passes were kept"


def test_flipped_bits_of_a_checkpoint_are_refused_or_harmless(tmp_path):
    """2,000 flips anywhere in the file: a checkpoint that is read is the one that was written."""
    interrupt(tmp_path / "run")
    (tmp_path / "run.previous").unlink(missing_ok=True)
    content = (tmp_path / "run").read_bytes()
    header, tensors = read(tmp_path / "run")
    draw = random.Random(SEED)
    refused = 0
    for _ in range(2000):
        flipped = bytearray(content)
        place = draw.randrange(8 * len(content))
        flipped[place // 8] ^= 1 << place % 8
        (tmp_path / "run").write_bytes(flipped)
        try:
            again, same = read(tmp_path / "run")
        except StorageError:
            refused += 1
            continue
        assert again == header and all(torch.equal(same[name], tensors[name]) for name in tensors), place
    print("seed", SEED, "refused", refused)
    assert refused > 1900, "nearly every bit of the file counts"


def test_out_of_memory_says_what_would_take_less(tmp_path):
    def exhausted(called, x):
        if x.shape[0] == 30 and len(tried) > 5:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried ..."
            )
        tried.append(1)
        return called(x)

    tried: list[int] = []
    with pytest.raises(OutOfMemoryError, match=r"while fitting SLU.*allocate memory.*By plan.*sketch_size") as found:
        method(forward=exhausted).fit(Loader(), calibration=False, checkpoint=tmp_path / "run")
    assert isinstance(found.value, MemoryError)
    assert (tmp_path / "run").exists(), "what was done is kept"


def test_a_loader_that_runs_out_of_memory_is_explained(tmp_path):
    """It is no fault of the data; smaller batches take less."""
    for fail in (1, 17):
        with pytest.raises(OutOfMemoryError, match=r"while fitting SLU: stop\..*Smaller batches"):
            method().fit(Loader(fail=fail, error=MemoryError), checkpoint=tmp_path / "run")
    assert method().fit(Loader(), checkpoint=tmp_path / "run").diagnostics.passes == 12


def test_a_checkpoint_without_the_content_of_its_data_is_refused_by_name(tmp_path):
    """As earlier versions wrote them, in the same format."""
    interrupt(tmp_path / "run")
    header, tensors = read(tmp_path / "run")
    del tensors["batches"]
    earlier = [(each, "an earlier") for each in (None, 2, VERSION - 1, str(VERSION))]
    for version, by in [*earlier, (VERSION + 1, "a newer")]:
        edited = {key: header[key] for key in header if key not in ("version", "read", "format")}
        write(tmp_path / "run", tensors, edited | ({} if version is None else {"version": version}))
        with pytest.raises(StorageError, match=f"was begun by {by} version of slu.*delete it to begin anew"):
            method().fit(Loader(), checkpoint=tmp_path / "run")


@pytest.mark.parametrize("solver", ["lanczos", "stream"])
@pytest.mark.parametrize(
    "edited",
    [
        {"read": None},
        {"read": 7},
        {"read": {"data": None}},
        {"read": {"data": {"points": 90}}},
        {"read": {"data": {"points": 90, "key": 7}}},
        {"read": {"data": {"points": 90, "key": 7, "padded_before": True}}},
        {"read": {"data": {"points": 90, "key": 7, "padded_before": 4}}},
        {"batches": 0},
    ],
)
def test_an_edited_record_of_the_data_is_refused(tmp_path, edited, solver):
    with pytest.raises(KeyboardInterrupt):
        method(solver=solver).fit(Loader(fail=3 if solver == "stream" else 17), checkpoint=tmp_path / "run")
    header, tensors = read(tmp_path / "run")
    if "batches" in edited:
        tensors["batches"] = tensors["batches"].float()
    write(tmp_path / "run", tensors, header | {key: edited[key] for key in edited if key == "read"})
    with pytest.raises(DamagedFileError, match="delete it to begin anew"):
        method(solver=solver).fit(Loader(), checkpoint=tmp_path / "run")


def test_negative_interval_is_refused():
    for wrong in (-1, "60", float("nan")):
        with pytest.raises(SettingError, match="a number of at least 0"):
            Checkpoint("run", every=wrong)
    with pytest.raises(SettingError, match="path"):
        method().fit(Loader(), checkpoint=5)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["stream", "lanczos"])
def test_fits_killed_at_random_moments_resume_bit_identical(tmp_path, solver):
    """kill -9 leaves no chance to tidy up; the control is that most kills hit a fit midway."""
    script = Path(__file__).with_name("kill_fits.py")
    command = [sys.executable, script, tmp_path, str(SEED), str(KILLS), solver]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    print("seed", SEED, told)
    assert told["different"] == 0
    assert told["hit"] >= KILLS // 2
    assert len({each for each in told["done"] if each}) >= 8 // step(2), "kills must fall on many different moments"


def interrupt(path: Path, every: float = 60.0) -> None:
    """Leave the checkpoint of a fit that was stopped in its sixth pass."""
    with pytest.raises(KeyboardInterrupt):
        method().fit(Loader(fail=17), checkpoint=Checkpoint(path, every=every))


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 7])


class Second(Loader):
    """Begins another fit on the same checkpoint, of other settings, while it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self.refused = path, []

    def __iter__(self):
        for batch in super().__iter__():
            for settings in ({}, {"rank": 11}):
                with pytest.raises(StorageError, match=r"being written by a fit of SLU, process \d+ on") as reason:
                    method(**settings).fit(Loader(), checkpoint=self._path)
                self.refused.append(reason.value)
            yield batch


def test_a_second_fit_on_a_checkpoint_is_refused_and_the_first_is_unharmed(tmp_path):
    loader = Second(tmp_path / "run")
    score = method().fit(loader, checkpoint=Checkpoint(tmp_path / "run", every=0))
    assert len(loader.refused) == 72
    assert torch.equal(score.state.subspace.basis, method().fit(Loader()).state.subspace.basis)
    assert {each.name for each in tmp_path.iterdir()} == {"run", "run.previous"}, "and the lock is gone"


def test_a_finished_checkpoint_is_read_by_several_at_a_time(tmp_path):
    expected = method().fit(Loader(), checkpoint=tmp_path / "run")
    read = []

    class Reads(Loader):
        def __iter__(self):
            read.append(method().fit(Loader(), checkpoint=tmp_path / "run"))
            yield from super().__iter__()

    read.append(method().fit(Reads(), checkpoint=tmp_path / "run"))
    assert all(torch.equal(score(inputs()), expected(inputs())) for score in read) and len(read) == 2


def test_an_interrupted_fit_leaves_no_lock(tmp_path):
    interrupt(tmp_path / "run", every=0.0)
    assert not (tmp_path / "run.lock").exists()
