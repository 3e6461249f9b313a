"""Files appear whole or not at all: kills, writers at the same time, full disks, links and permissions."""

import errno
import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slu.artifacts import check_writable, read, read_newest, replacing, write, write_generation
from slu.errors import StorageError

KILLS, SEED = 20, 12
OLD, NEW = {"a": torch.arange(3.0)}, {"a": torch.arange(4.0)}


def writers(*arguments):
    script = Path(__file__).with_name("writers.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert "failed" not in report, report
    return report


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_killed_at_random_moments_the_old_or_the_new_file_is_whole(tmp_path):
    print(f"{KILLS} kills, seed {SEED}")
    report = writers("killed", tmp_path, KILLS, SEED)
    assert len(report["read"]) == KILLS
    # The control: some kills came in the middle of a write, and some writers had finished a file before.
    assert report["hit"] >= 3
    assert any(writer > 0 for writer, _ in report["read"])
    assert names(tmp_path) == ["net.slu"]


def test_two_processes_saving_to_one_path_leave_one_whole_file(tmp_path):
    rounds = 25
    report = writers("together", tmp_path, rounds, 0)
    assert report["codes"] == [0, 0]
    assert report["last"][1] == rounds - 1
    assert report["left"] == []
    assert report["seen"] > 2


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_writes_is_not(tmp_path):
    path = tmp_path / "net [1]*.slu"
    left = tmp_path / ".net [1]*.slu.0123abcd.partial"
    others = [tmp_path / name for name in (".net [1]*.slu.partial", ".netx.slu.0123abcd.partial", "0123abcd.partial")]
    for each in [left, *others]:
        each.write_bytes(b"half")
    with replacing.replacing(path) as file:
        living = next(each for each in tmp_path.iterdir() if each.stat().st_size == 0)
        file.write(b"mine")
        write(path, OLD, {})
        assert not left.exists()
        assert living.exists()
        assert all(each.exists() for each in others)
    assert path.read_bytes() == b"mine"


def test_a_file_swept_before_it_was_locked_is_made_anew(tmp_path, monkeypatch):
    swept = []
    lock = replacing.fcntl.flock

    def late(file, operation):
        if not swept:
            swept.append(Path(file.name))
            swept[0].unlink()
        return lock(file, operation)

    monkeypatch.setattr(replacing.fcntl, "flock", late)
    with replacing.replacing(tmp_path / "net.slu") as file:
        file.write(b"whole")
    assert len(swept) == 1
    assert names(tmp_path) == ["net.slu"]
    assert (tmp_path / "net.slu").read_bytes() == b"whole"


def test_a_disk_without_locks_does_as_well(tmp_path, monkeypatch):
    def no_locks(file, operation):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(replacing.fcntl, "flock", no_locks)
    left = tmp_path / ".net.slu.0123abcd.partial"
    left.touch()
    write(tmp_path / "net.slu", OLD, {})
    assert torch.equal(read(tmp_path / "net.slu")[1]["a"], OLD["a"])
    assert left.exists()  # nobody can tell whether it is being written


def test_where_there_are_no_locks_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(replacing, "fcntl", None)
    (tmp_path / ".net.slu.0123abcd.partial").touch()
    write(tmp_path / "net.slu", OLD, {})
    assert names(tmp_path) == ["net.slu"]


def test_an_existing_file_is_replaced_and_whoever_reads_the_old_one_keeps_it(tmp_path):
    path = tmp_path / "net.slu"
    write(path, OLD, {"which": "old"})
    with path.open("rb") as reader:
        before = path.read_bytes()
        write(path, NEW, {"which": "new"})
        assert reader.read() == before
    assert read(path)[0]["which"] == "new"
    assert names(tmp_path) == ["net.slu"]


def test_others_may_read_it_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "net.slu", OLD, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "net.slu").stat().st_mode) == 0o640


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("before", [0o600, 0o640, 0o666, 0o400])
@pytest.mark.parametrize("way", [write, write_generation])
def test_a_file_that_replaces_another_has_its_mode_and_never_a_wider_one(tmp_path, monkeypatch, before, way):
    path = tmp_path / "net.slu"
    write(path, OLD, {})
    path.chmod(before)
    seen = []
    changing = os.fchmod

    def watched(descriptor, new):
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        changing(descriptor, new)

    monkeypatch.setattr(os, "fchmod", watched)
    check_writable(path)
    way(path, NEW, {})
    assert mode(path) == before and torch.equal(read(path)[1]["a"], NEW["a"])
    assert seen == 3 * [0o600], "made for its owner alone, and widened before anything is in it"
    if way is write_generation:
        assert mode(tmp_path / "net.slu.previous") == before


def test_a_checkpoint_whose_newest_file_is_missing_has_the_mode_of_the_one_before(tmp_path):
    path = tmp_path / "run"
    write(path, OLD, {})
    path.chmod(0o600)
    path.rename(tmp_path / "run.previous")
    write_generation(path, NEW, {})
    assert mode(path) == 0o600 and torch.equal(read_newest(path)[1]["a"], NEW["a"])


def test_the_rights_of_a_group_are_not_given_to_another(tmp_path, monkeypatch):
    path = tmp_path / "net.slu"
    write(path, OLD, {})
    path.chmod(0o664)
    there = os.stat_result([*path.stat()[:5], path.stat().st_gid + 1, *path.stat()[6:]])
    monkeypatch.setattr(replacing, "_replaced", lambda *_: there)
    monkeypatch.setattr(os, "fchown", denied)
    write(path, NEW, {})
    assert mode(path) == 0o604


def denied(*_):
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_a_disk_without_modes_keeps_the_narrow_one(tmp_path, monkeypatch):
    path = tmp_path / "net.slu"
    write(path, OLD, {})
    monkeypatch.setattr(os, "fchmod", denied)
    write(path, NEW, {})
    assert mode(path) == 0o600 and torch.equal(read(path)[1]["a"], NEW["a"])


def test_an_error_after_the_renaming_is_none(tmp_path, monkeypatch):
    """The content was on the disk before; a close that fails then says nothing of it."""
    path = tmp_path / "net.slu"
    write(path, OLD, {})
    renamed = []
    rename, discard = Path.replace, replacing._discard

    class Unclosed:
        def __init__(self, file):
            self.file = file

        def close(self):
            self.file.close()
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "replace", lambda *each: renamed.append(each) or rename(*each))
    monkeypatch.setattr(replacing, "_discard", lambda partial, file: discard(partial, Unclosed(file)))
    write(path, NEW, {})
    assert renamed and torch.equal(read(path)[1]["a"], NEW["a"])


@pytest.mark.parametrize(
    ("fails", "left", "said"),
    [
        ([0], ["run", "run.previous"], "run could not be written: Input/output error. The file that was there is unch"),
        ([1], ["run"], "run could not be written: Input/output error. The file that was there is unchanged"),
        ([1, 2], ["run.previous"], "run could not be written: Input/output error. The file .* is .*run.previous now"),
    ],
    ids=["the first", "the second", "and the way back"],
)
def test_a_renaming_that_fails_says_where_the_file_that_was_there_is(tmp_path, monkeypatch, fails, left, said):
    path = tmp_path / "run"
    for tensors in (NEW, OLD):
        write_generation(path, tensors, {})
    calls = []
    rename = Path.replace

    def failing(source, destination):
        calls.append(destination)
        if len(calls) - 1 in fails:
            raise OSError(errno.EIO, "Input/output error")
        return rename(source, destination)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(StorageError, match=said):
        write_generation(path, NEW, {})
    assert names(tmp_path) == left
    assert torch.equal(read_newest(path)[1]["a"], OLD["a"])


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "net.slu", tmp_path / "latest.slu"
    write(real, OLD, {})
    link.symlink_to(real)
    write(link, NEW, {})
    assert link.is_symlink()
    assert torch.equal(read(real)[1]["a"], NEW["a"])


@pytest.mark.parametrize("interrupt", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, interrupt):
    path = tmp_path / "net.slu"
    write(path, OLD, {})

    def fail(descriptor):
        raise interrupt

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((StorageError, KeyboardInterrupt)) as raised:
        write(path, NEW, {})
    if isinstance(interrupt, OSError):
        assert "No space left on device. The file that was there is unchanged" in str(raised.value)
    monkeypatch.undo()
    assert names(tmp_path) == ["net.slu"]
    assert torch.equal(read(path)[1]["a"], OLD["a"])


def test_a_file_larger_than_allowed(tmp_path):
    path = tmp_path / "net.slu"
    write(path, OLD, {})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(StorageError, match="File too large"):
            write(path, {"a": torch.zeros(1 << 20)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["net.slu"]
    assert torch.equal(read(path)[1]["a"], OLD["a"])


def test_a_folder_that_cannot_be_flushed_does_not_matter(tmp_path, monkeypatch):
    flush = os.fsync

    def only_files(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not on this disk")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    write(tmp_path / "net.slu", OLD, {})
    assert torch.equal(read(tmp_path / "net.slu")[1]["a"], OLD["a"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing/net.slu", "there is no folder .*missing; make it first"),
        ("", "is a folder; name a file in it"),
        ("file/net.slu", "there is no folder"),
        ("pipe", "is not a plain file"),
        ("n" * 250, "File name too long; name another"),
        ("nul\0", "not a path|null byte"),
    ],
    ids=["no folder", "is a folder", "below a file", "a pipe", "too long", "no path"],
)
def test_paths_that_cannot_be_written_are_found_before_and_at_the_write(tmp_path, name, message):
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for attempt in (check_writable, lambda path: write(path, OLD, {})):
        with pytest.raises(StorageError, match=message):
            attempt(os.path.join(tmp_path, name))  # noqa: PTH118 (an empty name)
    assert names(tmp_path) == ["file", "pipe"]


def test_checking_leaves_no_trace(tmp_path):
    check_writable(tmp_path / "net.slu")
    assert names(tmp_path) == []
    write(tmp_path / "net.slu", OLD, {})
    check_writable(str(tmp_path / "net.slu"))
    assert names(tmp_path) == ["net.slu"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StorageError, match="no permission in the folder"):
            check_writable(tmp_path / "net.slu")
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_denies_a_new_file(tmp_path, monkeypatch):
    monkeypatch.setattr(replacing, "_create", denied)
    with pytest.raises(StorageError, match=f"no permission in the folder {tmp_path}; name another"):
        check_writable(tmp_path / "net.slu")
