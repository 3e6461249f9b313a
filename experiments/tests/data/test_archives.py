"""Archives: unpacked whole, or refused without a trace."""

import io
import tarfile
import zipfile

import pytest

from slu.errors import DataError
from slu_experiments.data.archives import unpack
from tiny_sets import make_tar

FILES = {"set/a.bin": b"one", "set/below/b.bin": b"two" * 1000}


def make_zip(path, files, links=()):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("set/", b"")
        for name, content in files.items():
            packed.writestr(name, content)
        for name in links:
            member = zipfile.ZipInfo(name)
            member.external_attr = 0o120777 << 16
            packed.writestr(member, b"/etc/passwd")


def nothing_left(tmp_path, *names):
    """Only what was there before is there: no set, no scratch folder, nothing outside."""
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "zip"])
def test_good_archives(tmp_path, mode):
    archive, root = tmp_path / "archive", tmp_path / "root"
    root.mkdir()
    make_zip(archive, FILES) if mode == "zip" else make_tar(archive, FILES, mode)
    unpack(archive, root / "set")
    assert (root / "set" / "a.bin").read_bytes() == b"one"
    assert (root / "set" / "below" / "b.bin").read_bytes() == b"two" * 1000
    nothing_left(root, "set")


WAYS_OUT = ["../out.bin", "/tmp/out.bin", "set/../../out.bin", "set/..", "..\\out.bin", "C:/out.bin", "set/x\\..\\y"]


@pytest.mark.parametrize("name", WAYS_OUT)
@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_paths_that_leave_the_folder_are_refused(tmp_path, name, make):
    root = tmp_path / "root"
    root.mkdir()
    make(tmp_path / "archive", {**FILES, name: b"evil"})
    with pytest.raises(DataError, match=r"was not unpacked.*leads out"):
        unpack(tmp_path / "archive", root / "set")
    nothing_left(root)
    nothing_left(tmp_path, "archive", "root")


def link(kind, name="set/link", target="/etc/passwd"):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    make_tar(tmp_path / "archive", FILES, extra=[link(kind)])
    with pytest.raises(DataError, match="is a link or a device"):
        unpack(tmp_path / "archive", tmp_path / "set")
    nothing_left(tmp_path, "archive")


def test_links_in_a_zip_are_refused(tmp_path):
    make_zip(tmp_path / "archive", FILES, links=["set/link"])
    with pytest.raises(DataError, match="is a link or a device"):
        unpack(tmp_path / "archive", tmp_path / "set")
    nothing_left(tmp_path, "archive")


def test_a_folder_that_leads_out_is_refused(tmp_path):
    member = tarfile.TarInfo("../elsewhere")
    member.type = tarfile.DIRTYPE
    make_tar(tmp_path / "archive", FILES, extra=[member])
    with pytest.raises(DataError, match="leads out"):
        unpack(tmp_path / "archive", tmp_path / "set")
    nothing_left(tmp_path, "archive")


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("share", [0, 0.3, 0.9])
def test_cut_archives_are_refused(tmp_path, kind, share):
    archive = tmp_path / "archive"
    files = {f"set/{i}.bin": bytes(range(256)) * 40 for i in range(20)}
    make_zip(archive, files) if kind == "zip" else make_tar(archive, files, "w:gz")
    archive.write_bytes(archive.read_bytes()[: int(share * archive.stat().st_size)])
    with pytest.raises(DataError, match="no whole archive"):
        unpack(archive, tmp_path / "set")
    nothing_left(tmp_path, "archive")


def test_a_flipped_byte_in_a_zip_is_found(tmp_path):
    make_zip(tmp_path / "archive", {"set/a.bin": bytes(range(256)) * 40})
    content = bytearray((tmp_path / "archive").read_bytes())
    content[len(content) // 3] ^= 255
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(DataError, match="no whole archive"):
        unpack(tmp_path / "archive", tmp_path / "set")


def test_another_folder_than_expected_is_refused(tmp_path):
    make_tar(tmp_path / "archive", {"other/a.bin": b"one"})
    with pytest.raises(DataError, match="has no folder set; it has other"):
        unpack(tmp_path / "archive", tmp_path / "set")
    nothing_left(tmp_path, "archive")


def test_a_name_that_comes_twice_is_refused(tmp_path):
    with tarfile.open(tmp_path / "archive", "w") as tar:
        for content in (b"one", b"two"):
            member = tarfile.TarInfo("set/a.bin")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.raises(DataError, match="one name twice"):
        unpack(tmp_path / "archive", tmp_path / "set")
    nothing_left(tmp_path, "archive")


def test_what_a_killed_process_left_is_no_hindrance(tmp_path):
    make_tar(tmp_path / "archive", FILES)
    (tmp_path / ".set.unpacking" / "set").mkdir(parents=True)
    (tmp_path / ".set.unpacking" / "set" / "a.bin").write_bytes(b"half")
    unpack(tmp_path / "archive", tmp_path / "set")
    assert (tmp_path / "set" / "a.bin").read_bytes() == b"one"
    nothing_left(tmp_path, "archive", "set")


def test_what_is_there_is_left_alone(tmp_path):
    make_tar(tmp_path / "archive", FILES)
    (tmp_path / "set").mkdir()
    with pytest.raises(DataError, match="is there already"):
        unpack(tmp_path / "archive", tmp_path / "set")
    assert not list((tmp_path / "set").iterdir())
