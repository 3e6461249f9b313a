"""CelebA: a folder of aligned faces and a table of forty attributes. For non-commercial research only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from slu.errors import DataError
from slu_experiments.data.pictures import Pictures, picture_size
from slu_experiments.data.places import damaged, present

HELD_OUT = {"celeba-bald": "Bald", "celeba-mustache": "Mustache", "celeba-eyeglasses": "Eyeglasses"}
"""The sets of faces that no network is trained on, and the attribute that they share."""

TABLE, FACES = "list_attr_celeba.txt", "img_align_celeba"
_ATTRIBUTES = 40
_TEST = 10_000


@dataclass(frozen=True)
class Faces:
    """The attribute file.

    Attributes:
        files: Names of the pictures.
        attributes: Names of the columns.
        values: (n, 40) of 0 and 1.
    """

    files: tuple[str, ...]
    attributes: tuple[str, ...]
    values: np.ndarray


def open_celeba(folder: Path, part: str, name: str) -> Pictures:
    """Faces without any held-out attribute, and the other 37 attributes (b, 37) as 0 and 1.

    Test are the last 10,000 faces, or the last fifth of a set that has fewer than 50,000.
    Pictures keep the size they have, 218 × 178 upstream.

    Cost: the table, 8 MB upstream; pictures are decoded as they are read.
    """
    faces = read_faces(folder, name)
    kept = np.flatnonzero(~_held_out(faces).any(1))
    begin = len(kept) - min(_TEST, len(kept) // 5)
    return _pictures(folder, faces, kept[:begin] if part == "train" else kept[begin:], name)


def open_held_out(attribute: str, folder: Path, name: str) -> Pictures:
    """Every face that has the attribute, whatever else it has."""
    faces = read_faces(folder, name)
    column = faces.attributes.index(attribute)
    return _pictures(folder, faces, np.flatnonzero(faces.values[:, column]), name)


def read_faces(folder: Path, name: str) -> Faces:
    """The attribute file: how many faces, the names of the attributes, then one line per face.

    Raises:
        MissingDataError: It is not there.
        DataError: It is cut or something else.
    """
    path = present(folder / TABLE, name)
    lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    attributes = tuple(lines[1].split()) if len(lines) > 2 else ()
    if len(attributes) != _ATTRIBUTES or not set(HELD_OUT.values()) <= set(attributes):
        raise damaged(path, f"names {len(attributes)} attributes in its second line, expected {_ATTRIBUTES}", name)
    rows = [line.split() for line in lines[2:]]
    if lines[0].strip() != str(len(rows)):
        raise damaged(path, f"promises {lines[0].strip()[:20]!r} faces and has {len(rows)}: it is cut", name)
    for number, row in enumerate(rows, start=3):
        if len(row) != 1 + _ATTRIBUTES or not set(row[1:]) <= {"1", "-1"}:
            raise damaged(path, f"has no file name and {_ATTRIBUTES} values of 1 or -1 in line {number}", name)
        if Path(row[0]).name != row[0]:
            raise damaged(path, f"names a file outside of the folder in line {number}: {row[0]!r}", name)
    values = np.array([[value == "1" for value in row[1:]] for row in rows], np.uint8)
    return Faces(tuple(row[0] for row in rows), attributes, values)


def _held_out(faces: Faces) -> np.ndarray:
    """(n, 3) of bool: which face has which of the attributes that are held out."""
    return faces.values[:, [faces.attributes.index(each) for each in HELD_OUT.values()]].astype(bool)


def _pictures(folder: Path, faces: Faces, chosen: np.ndarray, name: str) -> Pictures:
    if not len(chosen):
        raise DataError(f"{name} has no face in {folder}: the attribute file has {len(faces.files)} in all")
    paths = [folder / FACES / faces.files[index] for index in chosen]
    columns = [i for i, attribute in enumerate(faces.attributes) if attribute not in HELD_OUT.values()]
    present(folder / FACES, name)
    size = picture_size(present(paths[0], name), name)
    return Pictures(paths, torch.from_numpy(faces.values[chosen][:, columns]).float(), size=size, name=name)
