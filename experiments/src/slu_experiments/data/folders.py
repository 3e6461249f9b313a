"""Pictures in one folder per class: Food-101, for scientific fair use, and ImageNet, for non-commercial research."""

from __future__ import annotations

from pathlib import Path

import torch

from slu.errors import MissingDataError
from slu_experiments.data.celeba import FACES
from slu_experiments.data.pictures import Pictures, picture_size
from slu_experiments.data.places import damaged, present

HELD_OUT = {
    "imagenet-carbonara": "n07831146",
    "imagenet-castle": "n02980441",
    "imagenet-flamingo": "n02007558",
    "imagenet-lighter": "n03666591",
    "imagenet-menu": "n07565083",
    "imagenet-odometer": "n03841143",
    "imagenet-parachute": "n03888257",
    "imagenet-pineapple": "n07753275",
    "imagenet-triceratops": "n01704323",
    "imagenet-volcano": "n09472597",
}
"""The paper's ten classes that no network is trained on."""

SPLITS = {"train": "train", "test": "val"}
_ENDINGS = (".jpeg", ".jpg", ".png")
_FACE = (218, 178)
_CUT, _SIDE = 256, 224


def open_food101(folder: Path, part: str, name: str) -> Pictures:
    """Food-101, each picture resized to the size of CelebA's faces, which it is compared with.

    That is the size of the faces beside it, or 218 × 178 where there are none. The order is
    that of `meta/train.txt` and `meta/test.txt`, labels that of `meta/classes.txt`.

    Cost: the paths; pictures are decoded as they are read.
    """
    listing = present(folder / "meta" / f"{part}.txt", name)
    classes = _lines(present(folder / "meta" / "classes.txt", name))
    labels = {each: label for label, each in enumerate(classes)}
    paths, targets = [], []
    for line in _lines(listing):
        kind, _, number = line.partition("/")
        if kind not in labels or not number or Path(number).name != number:
            raise damaged(
                listing, f"has the line {line[:60]!r}, expected CLASS/NUMBER with a class of classes.txt", name
            )
        paths.append(folder / "images" / kind / f"{number}.jpg")
        targets.append(labels[kind])
    if not paths:
        raise damaged(listing, "names no picture", name)
    present(paths[0], name)
    return Pictures(paths, torch.tensor(targets), size=_size_of_faces(folder.parent), name=name)


def open_imagenet(folder: Path, part: str, name: str) -> Pictures:
    """ImageNet without the held-out classes: 990 of them, labelled in the order of their WordNet ids.

    The shorter side is brought to 256 and the middle 224 × 224 are read.

    Cost: the paths, about 150 MB upstream; pictures are decoded as they are read.
    """
    below = present(folder / SPLITS[part], name)
    kept = sorted(each.name for each in below.iterdir() if each.is_dir() and each.name not in HELD_OUT.values())
    return _pictures(below, kept, name)


def open_held_out(kind: str, folder: Path, part: str, name: str) -> Pictures:
    """One held-out class, by its WordNet id; the label of all of them is 0, for want of a true one."""
    below = present(folder / SPLITS[part], name)
    present(below / kind, name)
    return _pictures(below, [kind], name)


def pictures_in(folder: Path) -> list[Path]:
    """The picture files of one folder, in the order of their names."""
    return sorted(each for each in folder.iterdir() if each.suffix.lower() in _ENDINGS)


def _pictures(below: Path, kinds: list[str], name: str) -> Pictures:
    labelled = [(path, label) for label, kind in enumerate(kinds) for path in pictures_in(below / kind)]
    if not labelled:
        raise MissingDataError(f"{name} is not here: no class folder in {below} holds a picture")
    paths, labels = [path for path, _ in labelled], torch.tensor([label for _, label in labelled])
    return Pictures(paths, labels, size=(_SIDE, _SIDE), crop=_CUT, name=name)


def _size_of_faces(root: Path) -> tuple[int, int]:
    faces = root / "celeba" / FACES
    first = next((path for path in faces.iterdir() if path.suffix == ".jpg"), None) if faces.is_dir() else None
    return _FACE if first is None else picture_size(first, "celeba")


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
