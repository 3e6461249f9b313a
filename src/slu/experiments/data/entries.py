"""What a line of the catalogue says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Download:
    """A file that upstream offers.

    Attributes:
        path: Where it goes, below the folder of the data sets.
        md5: Its checksum, as upstream or its usual readers give it.
        urls: Addresses, tried in turn; none where a form must be filled in first.
        size: Bytes, if known.
        unpacks_to: For an archive: the folder in it, by its place below the folder of the data
            sets. A fetched archive is removed when it is unpacked.
    """

    path: str
    md5: str
    urls: tuple[str, ...] = ()
    size: int | None = None
    unpacks_to: str | None = None


@dataclass(frozen=True)
class Entry:
    """A data set as upstream has it.

    Attributes:
        name: The name to open or fetch it by.
        title: What it is called.
        what: One line on its points.
        licence: Who may do what.
        home: Where it comes from.
        folder: Where it lies, below the folder of the data sets; "" where it needs none.
        counts: How many points upstream's parts have.
        shape: Of one input upstream; None where pictures differ.
        checksums: md5 of files below the folder of the data sets.
        versions: Other versions that go round, by the md5 of a file, in words.
        downloads: What `slu data fetch` gets.
        by_hand: What to do where upstream offers no plain address.
    """

    name: str
    title: str
    what: str
    licence: str
    home: str
    folder: str
    counts: Mapping[str, int]
    shape: tuple[int, ...] | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
