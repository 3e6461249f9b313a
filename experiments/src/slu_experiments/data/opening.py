"""Every data set by its name, shifts included."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from slu.errors import SettingError, unknown
from slu_experiments.data import celeba, folders
from slu_experiments.data.catalogue import CATALOGUE
from slu_experiments.data.cifar import open_cifar10, open_cifar100
from slu_experiments.data.corruptions import KINDS, REPORTED, SEVERITIES, corrupted
from slu_experiments.data.digits import open_digits, open_held_out_digits
from slu_experiments.data.idx import open_idx
from slu_experiments.data.places import folder
from slu_experiments.data.rotations import ANGLES, Rotated
from slu_experiments.data.source import Source
from slu_experiments.data.svhn import open_svhn
from slu_experiments.data.uci import TABLES, open_uci

PARTS = ("train", "test")

# By name: the entry of the catalogue that its files belong to, and what opens them: (folder, part, name of the entry).
_FILES: dict[str, tuple[str, Callable[[Path, str, str], Source]]] = {
    "mnist": ("mnist", open_idx),
    "fmnist": ("fmnist", open_idx),
    "kmnist": ("kmnist", open_idx),
    "cifar10": ("cifar10", open_cifar10),
    "cifar100": ("cifar100", open_cifar100),
    "svhn": ("svhn", open_svhn),
    "celeba": ("celeba", celeba.open_celeba),
    "food101": ("food101", folders.open_food101),
    "imagenet": ("imagenet", folders.open_imagenet),
    **{name: ("imagenet", partial(folders.open_held_out, kind)) for name, kind in folders.HELD_OUT.items()},
    **{name: (name, open_uci) for name in TABLES},
}
_FACES = {name: partial(celeba.open_held_out, attribute) for name, attribute in celeba.HELD_OUT.items()}
_ROTATED = ("mnist", "fmnist", "kmnist", "digits")
_HELD_OUT = ("digits-held-out", *_FACES)

_FAMILIES: dict[str, tuple[str, ...]] = {
    **{f"{name}-rotated": tuple(f"{name}-rotated-{angle}" for angle in ANGLES) for name in _ROTATED},
    "cifar10-corrupted": tuple(f"cifar10-{kind}-5" for kind in REPORTED),
    "celeba-held-out": tuple(celeba.HELD_OUT),
    "imagenet-held-out": tuple(folders.HELD_OUT),
    "uci": tuple(TABLES),
}


def open_set(name: str, part: str, root: str | Path | None = None) -> Source:
    """A data set: inputs and targets by their number, read when they are asked for.

    Args:
        name: One of `names()`, or `uci-NAME-3` for another split of a table than the first.
        part: "train" or "test". What is held out or corrupted has a test part only.
        root: The folder of the data sets; None takes SLU_DATA. The digits need none.

    Raises:
        SettingError: No such set or part.
        MissingDataError: It is not on this machine.
        DataError: Its files are damaged.

    Cost: what the opened file's reader says; pictures and CIFAR stay on the disk.
    """
    if part not in PARTS:
        raise unknown("part", part, PARTS)
    if name in _FAMILIES:
        raise SettingError(f"{name} is a family of sets, {_FAMILIES[name][0]} and others; open them one by one")
    for find in (_plain, _turned, _corrupted, _split):
        opener = find(name, part)
        if opener is not None:
            return opener(root)
    raise _no_such(name)


def names() -> list[str]:
    """Every name that `open_set` takes; tables by their first split."""
    turned = [member for name in _ROTATED for member in _FAMILIES[f"{name}-rotated"]]
    worn = [f"cifar10-{kind}-{severity}" for kind in KINDS for severity in SEVERITIES]
    return [*_FILES, "digits", *_HELD_OUT, *turned, *worn]


def families() -> dict[str, tuple[str, ...]]:
    """The names that stand for several sets."""
    return dict(_FAMILIES)


def expand(wanted: Iterable[str]) -> list[str]:
    """Families to their members, each name once and in order: fmnist-rotated to its twelve angles.

    Raises:
        SettingError: A name is neither a set nor a family.

    >>> expand(["mnist", "celeba-held-out"])
    ['mnist', 'celeba-bald', 'celeba-mustache', 'celeba-eyeglasses']
    """
    members: dict[str, None] = {}
    for name in wanted:
        for member in _FAMILIES.get(name, (name,)):
            if not any(find(member, "test") for find in (_plain, _turned, _corrupted, _split)):
                raise _no_such(member)
            members[member] = None
    return list(members)


Opener = Callable[[str | Path | None], Source]


def _plain(name: str, part: str) -> Opener | None:
    if name in _FILES:
        entry, opener = _FILES[name]
        return lambda root: opener(_below(root, entry), part, entry)
    if name == "digits":
        return lambda _: open_digits(part)
    if name == "digits-held-out":
        return lambda _: _test_only(name, part) or open_held_out_digits()
    if name in _FACES:
        return lambda root: _test_only(name, part) or _FACES[name](_below(root, "celeba"), "celeba")
    return None


def _turned(name: str, part: str) -> Opener | None:
    match = re.fullmatch(r"(.+)-rotated-([1-9]\d*)", name)
    if not match or match[1] not in _ROTATED or int(match[2]) not in ANGLES:
        return None
    return lambda root: Rotated(open_set(match[1], part, root), int(match[2]))


def _corrupted(name: str, part: str) -> Opener | None:
    match = re.fullmatch(r"cifar10-(\w+)-([1-5])", name)
    if not match or match[1] not in KINDS:
        return None
    return lambda root: (
        _test_only(name, part) or corrupted(folder(root), open_set("cifar10", part, root), match[1], int(match[2]))
    )


def _split(name: str, part: str) -> Opener | None:
    match = re.fullmatch(r"(uci-.+)-(\d+)", name)
    if not match or match[1] not in TABLES:
        return None
    return lambda root: open_uci(_below(root, match[1]), part, match[1], int(match[2]))


def _below(root: str | Path | None, entry: str) -> Path:
    return folder(root) / CATALOGUE[entry].folder


def _test_only(name: str, part: str) -> None:
    if part != "test":
        raise SettingError(f"{name} has no part {part!r}: no network is trained on it; ask for 'test'")


def _no_such(name: str) -> SettingError:
    shifts = ["NAME-rotated-15 to -180", "cifar10-CORRUPTION-1 to -5"]
    return unknown("data set", name, [*_FILES, "digits", *_HELD_OUT, *_FAMILIES, *shifts])
