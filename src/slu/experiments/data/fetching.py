"""Downloads: checked, resumed, and seen under their name only when they are whole."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slu.errors import DataError, MissingDataError
from slu.experiments.data.archives import unpack
from slu.experiments.data.entries import Download, Entry

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

CHUNK = 1 << 20
"""Bytes between two words on progress."""

_TIMEOUT = 30
_HTTP_PARTIAL, _HTTP_BAD_RANGE = 206, 416
_SCHEMES = ("https:", "http:", "file:")

Progress = Callable[[str, int, "int | None"], None]
"""Called with the file, the bytes there, and the bytes there will be (None where nobody knows)."""


def fetch(entry: Entry, root: Path, progress: Progress | None = None) -> dict[str, str]:
    """Bring a set's files below the root: what is there and fits is left alone.

    Args:
        entry: Of the catalogue.
        root: The folder of the data sets; it must exist.
        progress: Called every megabyte.

    Returns:
        What happened, by path: "here", "fetched" or "unpacked".

    Raises:
        MissingDataError: No address answers, or upstream has none.
        DataError: What came has another checksum, an archive is not what it should be, or a file
            of this name is there that is not upstream's.
    """
    if not entry.folder:
        return {}
    if not entry.downloads:
        raise MissingDataError(f"{entry.name} cannot be fetched: {entry.by_hand.format(root=root)}. Home: {entry.home}")
    return {each.unpacks_to or each.path: _bring(entry, each, root, progress) for each in entry.downloads}


def md5(path: Path) -> str:
    """The checksum of a file, read a megabyte at a time."""
    state = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            state.update(chunk)
    return state.hexdigest()


def _bring(entry: Entry, download: Download, root: Path, progress: Progress | None) -> str:
    path, place = root / download.path, root / (download.unpacks_to or download.path)
    if download.unpacks_to and place.exists():
        _check_unpacked(entry, place, root)
        return "here"
    there = path.exists()
    if there and md5(path) != download.md5:
        raise DataError(
            f"{path} is there, but it is not upstream's file (md5 {md5(path)}, expected {download.md5}); it is left as "
            "it is. Move it away to fetch the other"
        )
    if not there and not download.urls:
        raise MissingDataError(f"{path} is not here: {entry.by_hand.format(root=root)}. Home: {entry.home}")
    if there and not download.unpacks_to:
        return "here"
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path) as partial:
        if not there:
            _download(download, path, partial, progress)
        if not download.unpacks_to:
            return "fetched"
        unpack(path, place)
    if download.urls:
        path.unlink()  # what somebody brought here by hand is theirs
    return "unpacked"


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """Where to download a file to, which no other process writes meanwhile; nothing of it stays but what came."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("ab") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as reason:
            raise DataError(f"another process is fetching {path.name}; wait for it, or end it") from reason
        try:
            yield partial
        finally:
            if partial.exists() and not partial.stat().st_size:
                partial.unlink()


def _check_unpacked(entry: Entry, place: Path, root: Path) -> None:
    wrong = [file for file, expected in entry.checksums.items() if not _fits(root / file, expected)]
    if wrong:
        raise DataError(
            f"{place} is there, but {wrong[0]} in it is missing or not upstream's; it is left as it is. Move it away "
            "to fetch it anew"
        )


def _fits(path: Path, expected: str) -> bool:
    return path.is_file() and md5(path) == expected


def _download(download: Download, path: Path, partial: Path, progress: Progress | None) -> None:
    """To the partial file, from where an earlier try stopped; renamed once the checksum fits."""
    reasons = []
    # What an earlier try left may be damaged, and then the first address gets another chance.
    for url in (*download.urls, *(download.urls[:1] if partial.stat().st_size else ())):
        if not url.startswith(_SCHEMES):
            raise DataError(f"{url} is no address of the web or of a file")
        try:
            _transfer(url, partial, download.size, progress)
        except (OSError, http.client.HTTPException, ValueError) as reason:
            reasons.append(f"{url}: {getattr(reason, 'reason', None) or reason}")
            continue
        found = md5(partial)
        if found == download.md5:
            partial.replace(path)
            return
        os.truncate(partial, 0)
        reasons.append(f"{url}: what came has the checksum {found}, expected {download.md5}; it was removed")
    raise MissingDataError(
        f"{path.name} could not be fetched ({'; '.join(reasons)}). Try again later, which goes on where this stopped; "
        f"or, if this machine has no network, download it elsewhere and put it to {path}"
    )


def _transfer(url: str, partial: Path, size: int | None, progress: Progress | None) -> None:
    """Append to the partial file what it still lacks; start over where the server cannot go on."""
    done = partial.stat().st_size
    request = urllib.request.Request(url, headers={"User-Agent": "slu", **_from(done)})
    try:
        answer: Any = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as reason:
        with reason:
            if done and reason.code == _HTTP_BAD_RANGE:
                return  # nothing is left to come; the checksum decides
            raise
    with answer:
        if getattr(answer, "status", None) != _HTTP_PARTIAL:
            done = 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else size
        with partial.open("ab" if done else "wb") as file:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(partial.name.removeprefix(".").removesuffix(".partial"), done, total)
    if length and done != total:
        raise OSError(f"the connection ended after {done:,} of {total:,} bytes")


def _from(done: int) -> dict[str, str]:
    return {"Range": f"bytes={done}-"} if done else {}
