"""What of the data sets is on this machine, and whether it is as upstream has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from slu.errors import DataError, MissingDataError
from slu_experiments.data.catalogue import Entry
from slu_experiments.data.celeba import FACES, read_faces
from slu_experiments.data.corruptions import KINDS, StoredCorruption
from slu_experiments.data.fetching import md5
from slu_experiments.data.folders import SPLITS, pictures_in
from slu_experiments.data.opening import PARTS, open_set
from slu_experiments.data.pictures import Pictures
from slu_experiments.data.places import present
from slu_experiments.data.source import Source
from slu_experiments.data.uci import TABLES, open_uci, splits

WHOLE, PARTLY, MISSING, DAMAGED = "whole", "part", "missing", "damaged"
STATES = (WHOLE, PARTLY, MISSING, DAMAGED)

_READ = 100  # points that are really read, spread over a set


@dataclass(frozen=True)
class Finding:
    """The state of one data set on this machine.

    Attributes:
        name: Of the entry.
        state: "whole" (as upstream), "part" (readable, but less or other), "missing" or "damaged".
        counts: Points that are there, by part.
        fitting: How many files have the checksum that is known of them.
        compared: How many files were compared.
        remarks: What differs from upstream, in words.
    """

    name: str
    state: str
    counts: dict[str, int] = field(default_factory=dict)
    fitting: int = 0
    compared: int = 0
    remarks: tuple[str, ...] = ()


def check(entry: Entry, root: Path | None) -> Finding:
    """Read a set: every file's size and head, its checksum where one is known, and points spread over it.

    Args:
        entry: Of the catalogue.
        root: The folder of the data sets; None where there is none, and then only sets that need none are there.

    Cost: every file with a known checksum is read once, of the rest 100 points per part; one part
    in memory where its reader holds it.
    """
    if entry.folder and (root is None or not (root / entry.folder).is_dir()):
        return Finding(entry.name, MISSING)
    counts, remarks, broken = _count(entry, root)
    known = {} if root is None else {file: root / file for file in expected(entry) if (root / file).is_file()}
    sums = {file: md5(path) for file, path in known.items()}
    other = [file for file in known if sums[file] != expected(entry)[file]]
    remarks += [f"{file} is not upstream's file: {entry.versions.get(sums[file], sums[file])}" for file in other]
    # What is there is all that upstream has in that part, so that another checksum is damage.
    full = all(count in (0, entry.counts[part]) for part, count in counts.items())
    if broken or (other and full):
        state = DAMAGED
    elif not any(counts.values()):
        state = MISSING
    else:
        state = WHOLE if counts == dict(entry.counts) and not remarks else PARTLY
    return Finding(entry.name, state, counts, len(known) - len(other), len(known), tuple(remarks))


def expected(entry: Entry) -> dict[str, str]:
    """The files of a set with a known checksum, and their checksums."""
    return {each.path: each.md5 for each in entry.downloads if not each.unpacks_to} | dict(entry.checksums)


def _count(entry: Entry, root: Path | None) -> tuple[dict[str, int], list[str], bool]:
    """Points by part, remarks, and whether anything could not be read."""
    counts: dict[str, int] = {}
    remarks: list[str] = []
    broken = False
    for part, look in _looks(entry, root).items():
        try:
            counts[part], shape = look()
        except MissingDataError:
            counts[part] = 0
            continue
        except DataError as reason:
            counts[part], broken = 0, True
            remarks.append(str(reason))
            continue
        if entry.shape not in (None, shape):
            remarks.append(f"{part}: inputs are {_sizes(shape)}, upstream's {_sizes(entry.shape)}")
    return counts, remarks, broken


Shape = tuple[int, ...]
Look = Callable[[], "tuple[int, Shape]"]


def _looks(entry: Entry, root: Path | None) -> dict[str, Look]:
    """For each part that upstream has, the function that counts and reads it."""
    if root is not None and entry.name in TABLES:
        return {"rows": partial(_table, root / entry.folder, entry.name)}
    if root is not None and entry.name == "celeba":
        return {"faces": partial(_faces, root / entry.folder, root)}
    if root is not None and entry.name == "imagenet":
        return {part: partial(_classes, root / entry.folder, part, root) for part in PARTS}
    if root is not None and entry.name == "cifar10-c":
        return {"corruptions": partial(_corruptions, root / entry.folder)}
    looks: dict[str, Look] = {part: partial(_tried, entry.name, part, root) for part in PARTS}
    if entry.name == "digits":
        looks["held-out"] = partial(_tried, "digits-held-out", "test", root)
    return looks


def _tried(name: str, part: str, root: Path | None) -> tuple[int, Shape]:
    source = open_set(name, part, root)
    _read_some(source)
    return len(source), source.shape


def _faces(folder: Path, root: Path) -> tuple[int, Shape]:
    faces = read_faces(folder, "celeba")
    present(folder / FACES, "celeba")
    shapes = [_tried("celeba", part, root)[1] for part in PARTS]
    return len(faces.files), shapes[0]


def _classes(folder: Path, part: str, root: Path) -> tuple[int, Shape]:
    """All pictures, those of the classes held out too."""
    _, shape = _tried("imagenet", part, root)
    return sum(len(pictures_in(each)) for each in (folder / SPLITS[part]).iterdir() if each.is_dir()), shape


def _table(folder: Path, name: str) -> tuple[int, Shape]:
    rows: set[int] = set()
    shape: Shape = ()
    for split in range(splits(folder, name)):
        train, test = (open_uci(folder, part, name, split) for part in PARTS)
        rows.add(len(train) + len(test))
        shape = train.shape
    if len(rows) != 1:
        raise DataError(f"{name}: the splits do not all have the same number of rows, but {sorted(rows)}")
    return rows.pop(), shape


def _corruptions(folder: Path) -> tuple[int, Shape]:
    there = [kind for kind in KINDS if (folder / f"{kind}.npy").exists()]
    for kind in there:
        _read_some(StoredCorruption(folder, kind, 5))
    return len(there), (3, 32, 32)


def _read_some(source: Source) -> None:
    if isinstance(source, Pictures) and (absent := source.absent()):
        raise DataError(f"{len(absent):,} of {len(source):,} pictures are not there, {absent[0]} and so on")
    for chosen in torch.linspace(0, len(source) - 1, min(_READ, len(source))).long().split(10):
        source.read(chosen)


def _sizes(shape: Shape | None) -> str:
    return " × ".join(map(str, shape or ()))
