"""Archives unpacked so that they cannot write anywhere else."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO

from slu.errors import DataError


def unpack(archive: Path, folder: Path) -> None:
    """Put the archive's one folder in place, whole or not at all.

    Args:
        archive: A tar, compressed or not, or a zip.
        folder: Where to; its last name is that of the folder in the archive. It must not exist.

    Raises:
        DataError: The archive is cut or something else; it holds a link, a device, an absolute
            path or one that leaves its folder; or it has no folder of this name.

    Cost: one pass; the unpacked files, under another name beside the folder until all are there.
    """
    if folder.exists():
        raise DataError(f"{folder} is there already and is left as it is; move it away to unpack {archive.name} again")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = folder.with_name(f".{folder.name}.unpacking")
    shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed
    scratch.mkdir()
    try:
        _extract(archive, scratch)
        if not (scratch / folder.name).is_dir():
            content = ", ".join(sorted(each.name for each in scratch.iterdir())[:5]) or "nothing"
            raise DataError(f"{archive} has no folder {folder.name}; it has {content}")
        (scratch / folder.name).rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _extract(archive: Path, scratch: Path) -> None:
    members = _zipped if zipfile.is_zipfile(archive) else _tarred
    try:
        with members(archive) as files:
            for name, content in files:
                target = scratch / _safe(archive, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError, NotImplementedError) as reason:
        raise DataError(f"{archive} is no whole archive ({reason}); remove it and get it again") from reason
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as reason:
        raise DataError(f"{archive} holds one name twice ({reason}); nothing was unpacked") from reason


@contextmanager
def _tarred(archive: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    # As a stream: a compressed archive is read once and never searched.
    with tarfile.open(archive, "r|*") as tar:
        yield _tar_files(archive, tar)


def _tar_files(archive: Path, tar: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    for member in tar:
        if member.isdir():
            _safe(archive, member.name)
            continue
        content = tar.extractfile(member) if member.isreg() else None
        if content is None:
            raise _refused(archive, member.name, "is a link or a device")
        yield member.name, content


@contextmanager
def _zipped(archive: Path) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    with zipfile.ZipFile(archive) as packed:
        yield _zip_files(archive, packed)


def _zip_files(archive: Path, packed: zipfile.ZipFile) -> Iterator[tuple[str, IO[bytes]]]:
    for member in packed.infolist():
        if member.is_dir():
            _safe(archive, member.filename)
            continue
        kind = (member.external_attr >> 16) & 0o170000
        if kind not in (0, 0o100000):  # unix says what it is; other systems say nothing
            raise _refused(archive, member.filename, "is a link or a device")
        with packed.open(member) as content:
            yield member.filename, content


def _safe(archive: Path, name: str) -> PurePosixPath:
    """A path that stays below where it is put, on every system."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name or not path.parts:
        raise _refused(archive, name, "leads out of the folder it is unpacked to")
    return path


def _refused(archive: Path, name: str, why: str) -> DataError:
    return DataError(f"{archive} was not unpacked: {name!r} in it {why}. Do not trust this file; get it elsewhere")
