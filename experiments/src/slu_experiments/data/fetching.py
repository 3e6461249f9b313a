"""Downloads through pooch: compared with their checksum, and visible under their name only when they are whole.

pooch transfers a file, compares its md5 and renames it. Three things are added:

- Resumption. pooch starts every download over, and archives here have up to 5 GB. `_Resuming` keeps what came before a
  download was stopped, and asks the server for the rest.
- A file of the same name that is not upstream's is left alone, where pooch would replace it.
- Mirrors. Some sets have several addresses, which are tried in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import pooch

from slu.errors import DataError, MissingDataError
from slu_experiments.data.archives import unpack
from slu_experiments.data.catalogue import Download, Entry

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

CHUNK = 1 << 16
"""Bytes between two calls of a progress bar; a connection that breaks off loses fewer than this."""

_HTTP_WHOLE, _HTTP_BAD_RANGE = 200, 416


class ProgressBar(Protocol):
    """What pooch asks of a progress bar; the total is set before the first update."""

    total: int

    def update(self, count: int) -> None: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...


ProgressBars = Callable[[str, int], ProgressBar]
"""Makes the bar of a file, of which so many bytes are already there."""


def fetch(entry: Entry, root: Path, bars: ProgressBars | None = None) -> dict[str, str]:
    """Download a set's files below the root; what is there and fits is left alone.

    Args:
        entry: Of the catalogue.
        root: The folder of the data sets; it must exist.
        bars: Called for every file that is downloaded.

    Returns:
        What happened, by path: "here", "fetched" or "unpacked".

    Raises:
        MissingDataError: No address answers with the right file, or upstream has none.
        DataError: An archive is not what it should be, or a file of this name is there that is not upstream's.
    """
    if not entry.folder:
        return {}
    if not entry.downloads:
        raise MissingDataError(f"{entry.name} cannot be fetched: {entry.by_hand.format(root=root)}. Home: {entry.home}")
    return {each.unpacks_to or each.path: _bring(entry, each, root, bars) for each in entry.downloads}


def md5(path: Path) -> str:
    """The checksum of a file."""
    return pooch.file_hash(str(path), alg="md5")


def _bring(entry: Entry, download: Download, root: Path, bars: ProgressBars | None) -> str:
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
    with _locked(path):
        if not there:
            _download(download, path, bars)
        if not download.unpacks_to:
            return "fetched"
        unpack(path, place)
    if download.urls:
        path.unlink()  # a file that was put here by hand is kept
    return "unpacked"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process downloads and unpacks a file at a time."""
    lock = path.with_name(f".{path.name}.lock")
    with lock.open("w") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as reason:
            raise DataError(f"another process is fetching {path.name}; wait for it, or end it") from reason
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _check_unpacked(entry: Entry, place: Path, root: Path) -> None:
    wrong = [file for file, expected in entry.checksums.items() if not _fits(root / file, expected)]
    if wrong:
        raise DataError(
            f"{place} is there, but {wrong[0]} in it is missing or not upstream's; it is left as it is. Move it away "
            "to fetch it anew"
        )


def _fits(path: Path, expected: str) -> bool:
    return path.is_file() and md5(path) == expected


def _download(download: Download, path: Path, bars: ProgressBars | None) -> None:
    """From the first address that has the right file."""
    pooch.get_logger().setLevel("WARNING")
    partial = path.with_name(f".{path.name}.partial")
    downloader: Any = _Resuming(partial, path.name, bars)  # pooch names the parameters of its protocol otherwise
    reasons = []
    # The first address is tried once more where a partial file of an earlier run turns out to be damaged.
    for url in (*download.urls, *(download.urls[:1] if partial.exists() else ())):
        try:
            pooch.retrieve(url, f"md5:{download.md5}", fname=path.name, path=path.parent, downloader=downloader)
            return
        except (OSError, ValueError) as reason:
            reasons.append(f"{url}: {reason}")
    raise MissingDataError(
        f"{path.name} could not be fetched ({'; '.join(reasons)}). Try again later, which goes on where this stopped; "
        f"or, if this machine has no network, download it elsewhere and put it to {path}"
    )


class _Resuming:
    """A downloader for pooch that continues a partial file; the file stays when the download is stopped.

    Args:
        partial: Where bytes are collected, beside the file.
        name: Of the file, for its progress bar.
        bars: Makes the progress bar.
    """

    def __init__(self, partial: Path, name: str, bars: ProgressBars | None) -> None:
        self._partial, self._name, self._bars = partial, name, bars

    def _bytes(self) -> int:
        return self._partial.stat().st_size if self._partial.exists() else 0

    def __call__(self, url: str, output_file: str, caller: Any, check_only: bool | None = False) -> None:
        """Complete the partial file and move it to pooch's temporary one; pooch compares its checksum."""
        from requests import HTTPError

        del check_only
        done = self._bytes()
        bar = None if self._bars is None else self._bars(self._name, done)
        try:
            with self._partial.open("ab") as file:

                def start_over(response: Any, **_: Any) -> None:
                    if response.status_code == _HTTP_WHOLE:  # the server does not do ranges
                        file.truncate(0)

                # Encoded on the way, a part of the bytes would not be a part of the file.
                headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
                shown: Any = bar or False
                transfer = pooch.HTTPDownloader(shown, CHUNK, headers=headers, hooks={"response": start_over})
                try:
                    transfer(url, file, caller)
                except HTTPError as reason:
                    if not done or reason.response is None or reason.response.status_code != _HTTP_BAD_RANGE:
                        raise
                    # Nothing is left to come; the checksum decides.
            self._partial.replace(output_file)
        finally:
            if bar is not None:
                bar.close()
            if not self._bytes():
                with suppress(FileNotFoundError):
                    self._partial.unlink()
