"""Downloads, from a server on this machine: checked, resumed, atomic."""

import hashlib
import socket
from dataclasses import replace

import pytest

from local_server import serving
from slu.errors import DataError, MissingDataError
from slu_experiments.data.catalogue import Download, Entry
from slu_experiments.data.fetching import CHUNK, fetch, md5
from tiny_sets import make_tar

CONTENT = bytes(range(256)) * 5000  # more than one chunk


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    """Whatever proxy this machine uses, this machine itself is not behind it."""
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server():
    with serving({"/file": CONTENT}) as handler:
        yield handler


class Recorded:
    """A progress bar that remembers what it was told."""

    def __init__(self, file, done):
        self.file, self.done, self.total, self.closed, self.last = file, done, 0, False, 0

    def update(self, count):
        self.last += count

    def reset(self):
        self.last = 0

    def close(self):
        self.closed = True


def entry(*urls, content=CONTENT, **options):
    download = Download("set/file", hashlib.md5(content).hexdigest(), urls, **options)
    return Entry(
        "set", "Set", "points", "free", "home", "set", {"test": 1}, downloads=(download,), by_hand="ask for {root}"
    )


def left(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_a_download_is_checked_named_and_not_repeated(server, tmp_path):
    told = []
    wanted = entry(f"{server.url}/file")
    assert fetch(wanted, tmp_path, lambda *each: told.append(Recorded(*each)) or told[-1]) == {"set/file": "fetched"}
    assert (tmp_path / "set" / "file").read_bytes() == CONTENT
    assert left(tmp_path) == ["set/file"]
    (bar,) = told
    assert (bar.file, bar.done, bar.total, bar.last, bar.closed) == ("file", 0, len(CONTENT), len(CONTENT), True)
    assert fetch(wanted, tmp_path) == {"set/file": "here"}
    assert server.asked == [None]


def test_another_checksum_is_refused_and_nothing_stays(server, tmp_path):
    server.files["/file"] = CONTENT[:-1] + b"!"
    with pytest.raises(MissingDataError, match=r"does not match the known hash: expected .* but got .*Deleted"):
        fetch(entry(f"{server.url}/file"), tmp_path)
    assert left(tmp_path) == []


def test_the_next_address_is_tried(server, tmp_path):
    wanted = entry(f"{server.url}/gone", f"{server.url}/file")
    assert fetch(wanted, tmp_path) == {"set/file": "fetched"}


@pytest.mark.parametrize("ranges", [True, False])
def test_a_stopped_download_goes_on_or_starts_over(server, tmp_path, ranges):
    server.ranges, server.cut = ranges, 700_000
    with pytest.raises(MissingDataError, match=r"could not be fetched.*goes on where this stopped.*no network"):
        fetch(entry(f"{server.url}/file"), tmp_path)
    assert left(tmp_path) == ["set/.file.partial"]
    kept = (tmp_path / "set" / ".file.partial").stat().st_size
    assert 700_000 - CHUNK < kept <= 700_000
    server.cut = None
    assert fetch(entry(f"{server.url}/file"), tmp_path) == {"set/file": "fetched"}
    assert (tmp_path / "set" / "file").read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={kept}-"]
    assert left(tmp_path) == ["set/file"]


def test_what_was_left_is_whole_but_unchecked(server, tmp_path):
    """Killed between the last byte and the renaming."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / ".file.partial").write_bytes(CONTENT)
    assert fetch(entry(f"{server.url}/file"), tmp_path) == {"set/file": "fetched"}


def test_what_was_left_is_damaged(server, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / ".file.partial").write_bytes(b"!" * 1000)
    assert fetch(entry(f"{server.url}/file"), tmp_path) == {"set/file": "fetched"}
    assert (tmp_path / "set" / "file").read_bytes() == CONTENT


def test_an_interrupt_leaves_what_came_so_far(server, tmp_path):
    class Stopping(Recorded):
        def update(self, count):
            raise KeyboardInterrupt

    made = []
    with pytest.raises(KeyboardInterrupt):
        fetch(entry(f"{server.url}/file"), tmp_path, lambda *each: made.append(Stopping(*each)) or made[-1])
    assert made[0].closed
    assert left(tmp_path) == ["set/.file.partial"]
    assert fetch(entry(f"{server.url}/file"), tmp_path) == {"set/file": "fetched"}
    assert server.asked[-1].startswith("bytes=")


def test_two_processes_do_not_write_one_file(server, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    (tmp_path / "set").mkdir()
    with (tmp_path / "set" / ".file.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is fetching file"):
            fetch(entry(f"{server.url}/file"), tmp_path)
    assert fetch(entry(f"{server.url}/file"), tmp_path) == {"set/file": "fetched"}


def test_no_network(tmp_path):
    """A port on which nobody listens any more."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/file"
    with pytest.raises(MissingDataError, match=rf"{url}.*no network.*put it to {tmp_path}"):
        fetch(entry(url), tmp_path)
    assert left(tmp_path) == []


def test_an_address_that_is_none(tmp_path):
    with pytest.raises(MissingDataError, match="ftp://somewhere/file"):
        fetch(entry("ftp://somewhere/file"), tmp_path)


def test_a_file_that_is_not_upstreams_is_left_alone(server, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file").write_bytes(b"my own")
    with pytest.raises(DataError, match="not upstream's file"):
        fetch(entry(f"{server.url}/file"), tmp_path)
    assert (tmp_path / "set" / "file").read_bytes() == b"my own"


@pytest.fixture
def packed(server, tmp_path):
    make_tar(tmp_path / "packed", {"set/a.bin": b"one"})
    content = (tmp_path / "packed").read_bytes()
    (tmp_path / "packed").unlink()
    server.files["/file"] = content
    wanted = entry(f"{server.url}/file", content=content, unpacks_to="set")
    download = replace(wanted.downloads[0], path="set.tar.gz")
    return replace(wanted, downloads=(download,), checksums={"set/a.bin": hashlib.md5(b"one").hexdigest()})


def test_an_archive_is_unpacked_and_removed(packed, tmp_path):
    assert fetch(packed, tmp_path) == {"set": "unpacked"}
    assert left(tmp_path) == ["set/a.bin"]
    assert fetch(packed, tmp_path) == {"set": "here"}


def test_a_folder_with_other_files_is_left_alone(packed, tmp_path):
    fetch(packed, tmp_path)
    (tmp_path / "set" / "a.bin").write_bytes(b"two")
    with pytest.raises(DataError, match=r"set/a.bin in it is missing or not upstream's"):
        fetch(packed, tmp_path)
    assert (tmp_path / "set" / "a.bin").read_bytes() == b"two"


def test_what_was_brought_by_hand_is_checked_unpacked_and_kept(packed, server, tmp_path):
    wanted = replace(packed, downloads=(replace(packed.downloads[0], urls=(), path="set.here/x.tar.gz"),))
    with pytest.raises(MissingDataError, match=f"ask for {tmp_path}"):
        fetch(wanted, tmp_path)
    (tmp_path / "set.here").mkdir()
    (tmp_path / "set.here" / "x.tar.gz").write_bytes(server.files["/file"])
    assert fetch(wanted, tmp_path) == {"set": "unpacked"}
    assert left(tmp_path) == ["set.here/x.tar.gz", "set/a.bin"]


def test_sets_that_cannot_or_need_not_be_fetched(tmp_path):
    with pytest.raises(MissingDataError, match="cannot be fetched: ask for"):
        fetch(replace(entry(), downloads=()), tmp_path)
    assert fetch(replace(entry(), folder=""), tmp_path) == {}


def test_checksums(tmp_path):
    (tmp_path / "x").write_bytes(CONTENT)
    assert md5(tmp_path / "x") == hashlib.md5(CONTENT).hexdigest()
