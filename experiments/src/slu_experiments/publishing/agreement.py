"""Ours beside the paper's: accuracies, and which cells of its tables come out again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from slu_experiments.results import Result
from slu_experiments.settings import METHODS, Reported
from slu_experiments.tables import Cell, Measured, Table

AIM = 0.8
"""The share of cells that should come out within two spreads."""

CLOSE = 0.01
"""How far an accuracy may be from the paper's."""

UNKNOWN = "cause not known yet"
PRINTED, RUN = "as printed", "as run"
_ENDINGS = {PRINTED: ("",), RUN: ("-as-run", "-paper-prior", "")}


@dataclass(frozen=True)
class Compared:
    """One cell of the paper's table for which both sides have numbers, and the paper a spread."""

    table: Table
    method: str
    family: str
    cell: Cell

    def cause(self, causes: Mapping[str, str]) -> str:
        """Why it differs: the first entry whose key, setting/method/family with wildcards, fits.

        Args:
            causes: By such keys.
        """
        name = f"{self.table.setting.name}/{self.method}/{self.family}"
        return next((cause for key, cause in causes.items() if fnmatch(name, key)), UNKNOWN)

    @property
    def others(self) -> list[str]:
        """Further rows of ours beside the same row of the paper whose cell is within its spreads."""
        return [
            row.title
            for row in self.table.rows
            if row.method != self.method and METHODS[row.method].paper == METHODS[self.method].paper
            for cell in (row.cells[self.family],)
            if cell.ours is not None and not cell.differs
        ]


def compared(table: Table, way: str) -> list[Compared]:
    """The cells of the paper's methods in one block: by the formulas, or as the authors ran them.

    Args:
        table: The block.
        way: PRINTED takes the row that follows the formulas; RUN the row with all of the authors' options, or else the
            one with their prior, of a method that has it.
    """
    cells = []
    for row in table.rows:
        if METHODS[row.method].paper != row.method:
            continue
        names = [f"{row.method}{ending}" for ending in _ENDINGS[way]]
        chosen = next(each for name in names for each in table.rows if each.method == name)
        cells += [
            Compared(table, chosen.method, family, cell)
            for family, cell in chosen.cells.items()
            if cell.ours is not None and cell.paper is not None and cell.paper.spread is not None
        ]
    return cells


def differing(cells: Iterable[Compared]) -> list[Compared]:
    """Those further from the paper's than two of its spreads."""
    return [each for each in cells if each.cell.differs]


def share(cells: Sequence[Compared]) -> float | None:
    """Of cells within two spreads; None where there are none to compare."""
    return 1 - len(differing(cells)) / len(cells) if cells else None


def accuracy(results: Iterable[Result]) -> Measured | None:
    """Of the networks of these runs, on the test set."""
    networks = {result.config["seed"]: result.metrics["network"]["accuracy"] for result in results}
    values = [each for each in networks.values() if each is not None]
    return Measured.of(values) if values else None


def is_close(ours: Measured, paper: Reported) -> bool:
    """Whether our networks are as accurate as the paper's."""
    return abs(ours.mean - paper.mean) <= CLOSE
