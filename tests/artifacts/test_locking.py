"""A path has one writer; a process that was killed holds no lock."""

import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from slu.artifacts import locking
from slu.artifacts.locking import locked
from slu.errors import StorageError

HOLDS = """
import os, sys, time
from slu.artifacts.locking import locked
with locked(sys.argv[1], "a test"):
    if sys.argv[2] == "fork" and os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(60)
        os._exit(0)
    if sys.argv[2] != "fork":
        print("locked", flush=True)
    time.sleep(60)
"""

COUNTS = """
import sys, time
from pathlib import Path
from slu.artifacts.locking import locked
from slu.errors import StorageError
counter, done = Path(sys.argv[1] + ".count"), 0
while done < 200:
    try:
        with locked(sys.argv[1], "counting"):
            number = int(counter.read_text())
            counter.write_text(str(number + 1))
            done += 1
    except StorageError:
        pass
"""


def holder(path: Path, how: str = "alone") -> tuple[subprocess.Popen, str]:
    """Another process that holds the lock, and what it said."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS, path, how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_the_owner_is_named_to_the_same_thread_and_to_another(tmp_path):
    path, told = tmp_path / "run", []

    def second():
        with pytest.raises(
            StorageError, match=f"a fit of SLU, process {os.getpid()} on .*, since 2.*name another"
        ) as no:
            locked(path, "another").__enter__()
        told.append(str(no.value))

    with locked(path, "a fit of SLU"):
        second()
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(told) == 2 and str(path) in told[0]
    assert not list(tmp_path.iterdir())


def test_the_owner_in_another_process_is_named_and_a_killed_one_holds_nothing(tmp_path):
    process, _ = holder(tmp_path / "run")
    try:
        with pytest.raises(StorageError, match=f"a test, process {process.pid} on"):
            locked(tmp_path / "run", "another").__enter__()
    finally:
        process.kill()
        process.communicate()
    assert (tmp_path / "run.lock").exists(), "killed, it could not remove it"
    with locked(tmp_path / "run", "another"):
        assert f"process {os.getpid()}" in (tmp_path / "run.lock").read_text()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_workers_of_a_killed_process_hold_nothing(tmp_path):
    """A DataLoader's workers are forks, and live on for some seconds."""
    process, child = holder(tmp_path / "run", "fork")
    try:
        process.kill()
        process.wait()
        os.kill(int(child), 0)  # the fork runs
        with locked(tmp_path / "run", "another"):
            pass
    finally:
        os.kill(int(child), signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_whatever_ends_the_block_releases_the_lock(error, tmp_path):
    for _ in range(2):
        with pytest.raises(error), locked(tmp_path / "run", "a test"):
            raise error
    assert not list(tmp_path.iterdir()) and not locking._held


def test_a_fork_that_leaves_the_block_releases_nothing(tmp_path):
    with locked(tmp_path / "run", "a test"):
        process = os.fork()
        if process == 0:
            try:
                locking_left_in_child(tmp_path / "run")
            finally:
                os._exit(1)
        assert os.waitpid(process, 0)[1] == 0
        assert (tmp_path / "run.lock").exists()


def locking_left_in_child(path: Path) -> None:
    try:
        locked(path, "the child").__enter__()
    except StorageError:
        os._exit(0)


def test_several_processes_never_hold_it_together(tmp_path):
    """Each removes the file as it leaves: the next must not lock one that is no longer there."""
    (tmp_path / "run.count").write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", COUNTS, tmp_path / "run"]) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert (tmp_path / "run.count").read_text() == "600"


def test_a_file_that_is_no_lock_is_left_as_it_is(tmp_path):
    (tmp_path / "run.lock").write_text("versions of packages")
    with pytest.raises(StorageError, match="no lock of slu; name another"):
        locked(tmp_path / "run", "a test").__enter__()
    assert (tmp_path / "run.lock").read_text() == "versions of packages"
    (tmp_path / "run.lock").unlink()
    (tmp_path / "other").write_text("")
    (tmp_path / "run.lock").symlink_to(tmp_path / "other")
    with pytest.raises(StorageError, match="cannot be opened"):
        locked(tmp_path / "run", "a test").__enter__()


def test_a_link_and_what_it_points_to_are_one_path(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with locked(tmp_path / "link", "a test"), pytest.raises(StorageError, match="being written"):
        locked(tmp_path / "run", "another").__enter__()


def test_the_text_of_a_lock_reaches_no_terminal_unfiltered(tmp_path):
    (tmp_path / "run.lock").write_text("slu: \x1b[31mred\nlines")
    with (tmp_path / "run.lock").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StorageError) as refused:
            locked(tmp_path / "run", "a test").__enter__()
    assert "\x1b" not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_disk_without_locks_is_logged(number, tmp_path, monkeypatch, caplog):
    def none(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("slu.artifacts.locking.fcntl.flock", none)
    with caplog.at_level(logging.WARNING), locked(tmp_path / "run", "a test"), locked(tmp_path / "run", "another"):
        pass
    assert caplog.text.count("no locks") == 2
    monkeypatch.setattr(locking, "fcntl", None)
    with caplog.at_level(logging.WARNING), locked(tmp_path / "run", "a test"):
        assert "no file locks" in caplog.text


def test_a_pipe_is_no_lock(tmp_path):
    os.mkfifo(tmp_path / "run.lock")
    with pytest.raises(StorageError, match="no lock of slu; name another"):
        locked(tmp_path / "run", "a test").__enter__()


@pytest.mark.parametrize("call", ["pread", "fstat"])
def test_a_failing_disk_leaves_no_lock_held(call, tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(f"slu.artifacts.locking.os.{call}", fails)
        with pytest.raises(StorageError, match="cannot be read: Input/output error"):
            locked(tmp_path / "run", "a test").__enter__()
    with locked(tmp_path / "run", "another"):
        pass
    assert not locking._held


def test_an_error_of_closing_ends_no_work(tmp_path, monkeypatch):
    closes = os.close

    def fails(descriptor):
        closes(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch, locked(tmp_path / "run", "a test"):
        patch.setattr("slu.artifacts.locking.os.close", fails)
        with pytest.raises(StorageError, match="is being written by a test"):
            locked(tmp_path / "run", "another").__enter__()
    with monkeypatch.context() as patch:
        patch.setattr("slu.artifacts.locking.os.close", fails)
        with locked(tmp_path / "run", "a test"):
            pass
    assert not locking._held and not list(tmp_path.iterdir())


def test_ctrl_c_at_once_after_it_was_acquired_keeps_no_lock(tmp_path, monkeypatch):
    acquire = locking._acquire

    def interrupted(*args):
        acquire(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(locking, "_acquire", interrupted)
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "run", "a fit"):
        pytest.fail("it was interrupted before")
    monkeypatch.undo()
    assert not locking._held and not (tmp_path / "run.lock").exists()
    with locked(tmp_path / "run", "another fit"):
        pass
