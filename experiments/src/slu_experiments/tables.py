"""The paper's table beside ours, from folders of results alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from slu_experiments.data import expand
from slu_experiments.results import Result
from slu_experiments.settings import METHODS, Reported, Setting, reported

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_DIGIT = 0.005  # the paper prints two digits, so a spread of "0.00" may be as much
MARK = "!"


@dataclass(frozen=True)
class Measured:
    """Mean and standard deviation over networks; no deviation for one network."""

    mean: float
    spread: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Measured:
        """From one value a network."""
        return cls(mean(values), stdev(values) if len(values) > 1 else None, len(values))

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.spread is None else f"{self.mean:.3f} ± {self.spread:.3f}"


@dataclass(frozen=True)
class Cell:
    """Ours and the paper's AUROC on one family of sets.

    Attributes:
        ours, paper: None where there is none.
        members: Sets of the family that were scored, of how many.
    """

    ours: Measured | None
    paper: Reported | None
    members: tuple[int, int]

    @property
    def differs(self) -> bool:
        """Whether they differ by more than two of the paper's spreads."""
        if self.ours is None or self.paper is None or self.paper.spread is None:
            return False
        return abs(self.ours.mean - self.paper.mean) > 2 * max(self.paper.spread, _DIGIT)


@dataclass(frozen=True)
class Row:
    """One method: its cells by family, the copies of the parameters it keeps, seconds to fit."""

    method: str
    title: str
    cells: dict[str, Cell]
    copies: float | None
    seconds: float | None


@dataclass(frozen=True)
class Table:
    """A block of the paper's table.

    Attributes:
        setting, budget: Which block.
        rows: In the order of the table of methods.
        accuracy: Of the networks, on the test set.
        seeds, points, queries, training: What ours was made of.
    """

    setting: Setting
    budget: str
    rows: tuple[Row, ...]
    accuracy: Measured | None
    seeds: tuple[int, ...]
    points: int | None
    queries: int | None
    training: Mapping[str, int]

    @property
    def differing(self) -> list[tuple[str, str]]:
        """(method, family) of every cell further from the paper's than two of its spreads."""
        return [(row.title, family) for row in self.rows for family, cell in row.cells.items() if cell.differs]


def tabulate(results: Iterable[Result], setting: Setting, budget: str, *, only: Sequence[str] | None = None) -> Table:
    """A table of score runs of one setting, budget and kind.

    Args:
        results: Of the runs.
        setting, budget: Whose.
        only: Methods; without it the paper's rows that ours lack stand in the table too.
    """
    runs = list(results)
    by_method: dict[str, list[Result]] = {}
    for result in runs:
        by_method.setdefault(result.config["method"], []).append(result)
    listed = [name for name in METHODS if name in by_method or (only is None and _of_paper(name, setting))]
    rows = [_row(name, by_method.get(name, []), setting, budget) for name in listed]
    networks = {result.config["seed"]: result.metrics["network"]["accuracy"] for result in runs}
    accuracies = [each for each in networks.values() if each is not None]
    return Table(
        setting=setting,
        budget=budget,
        rows=tuple(rows),
        accuracy=Measured.of(accuracies) if accuracies else None,
        seeds=tuple(sorted(networks)),
        points=runs[0].config["points"] if runs else setting.points,
        queries=runs[0].config["queries"] if runs else None,
        training=runs[0].config["training"] if runs else {},
    )


def _of_paper(name: str, setting: Setting) -> bool:
    return setting.accuracy is not None and METHODS[name].paper == name


def _row(name: str, results: Sequence[Result], setting: Setting, budget: str) -> Row:
    choice = METHODS[name]
    cells = {
        family: Cell(
            ours=_measured(results, expand([family])),
            paper=reported(setting.name, budget, choice.paper, family),
            members=_members(results, expand([family])),
        )
        for family in setting.outside
    }
    copies = [result.metrics["memory"]["kept_copies"] for result in results]
    seconds = [result.metrics["seconds"]["fit"] for result in results]
    return Row(name, choice.title, cells, mean(copies) if copies else None, mean(seconds) if seconds else None)


def _measured(results: Sequence[Result], members: Sequence[str]) -> Measured | None:
    """Over networks, of the mean over a family's sets."""
    by_seed: dict[int, dict[str, float]] = {}
    for result in results:
        judged = result.metrics["judgements"]
        here = {name: judged[name]["auroc"]["value"] for name in members if name in judged}
        by_seed.setdefault(result.config["seed"], {}).update(here)
    values = [mean(each.values()) for each in by_seed.values() if each]
    return Measured.of(values) if values else None


def _members(results: Sequence[Result], members: Sequence[str]) -> tuple[int, int]:
    return sum(any(name in result.metrics["judgements"] for result in results) for name in members), len(members)


def headings(table: Table) -> list[str]:
    """What stands over the columns."""
    families = [f"{family}{' (mean)' if len(expand([family])) > 1 else ''}" for family in table.setting.outside]
    pairs = [each for family in families for each in ((family, "paper") if in_paper(table) else (family,))]
    return ["method", *pairs, "kept", "fit, s"]


def in_paper(table: Table) -> bool:
    """Whether the paper has numbers for any of it."""
    return any(cell.paper for row in table.rows for cell in row.cells.values())


def texts(row: Row, *, paper: bool) -> list[str]:
    """The cells of a row as they are printed, the paper's beside them."""
    cells = [row.title]
    for cell in row.cells.values():
        cells.append("" if cell.ours is None else f"{cell.ours}{f' {MARK}' if cell.differs else ''}")
        if paper:
            cells.append("" if cell.paper is None else str(cell.paper))
    copies = "" if row.copies is None else f"{row.copies:.2f}p"
    return [*cells, copies, "" if row.seconds is None else f"{row.seconds:.1f}"]


def caption(table: Table) -> list[str]:
    """What a reader must know besides."""
    names = ", ".join(map(str, table.seeds))
    seeds = f"network{'s' if len(table.seeds) > 1 else ''} {names}" if table.seeds else "no networks yet"
    points = "every training point" if table.points is None else f"{table.points:,} points"
    queries = "all test points" if table.queries is None else f"at most {table.queries:,} test points per set"
    lines = [f"AUROC, mean ± standard deviation over {seeds}; fitted on {points}, {queries}."]
    if table.training:
        asked = ", ".join(f"{name} {value:,}" for name, value in table.training.items())
        lines.append(f"The networks were trained otherwise than the paper's: {asked}.")
    if table.accuracy is not None:
        paper = table.setting.accuracy
        beside = "" if paper is None else f"; the paper's {accuracy_text(paper)}"
        lines.append(f"Test accuracy {table.accuracy}{beside}.")
    if in_paper(table):
        lines.append(f"{MARK}: further from the paper's than two of its spreads. As run: with the authors' options.")
    return [*lines, *_incomplete(table), *table.setting.notes]


def accuracy_text(paper: Reported) -> str:
    """An accuracy that the paper reports, in its three digits."""
    return f"{paper.mean:.3f}" + ("" if paper.spread is None else f" ± {paper.spread:.3f}")


def _incomplete(table: Table) -> list[str]:
    """Which rows are of fewer networks, and which of a part of a family's sets."""
    fewer: dict[int, list[str]] = {}
    partly: dict[tuple[str, int, int], list[str]] = {}
    for row in table.rows:
        networks = max((cell.ours.seeds for cell in row.cells.values() if cell.ours is not None), default=0)
        if 0 < networks < len(table.seeds):
            fewer.setdefault(networks, []).append(row.title)
        for family, cell in row.cells.items():
            if 0 < cell.members[0] < cell.members[1]:
                partly.setdefault((family, *cell.members), []).append(row.title)
    lines = [
        f"On {count} network{'s' if count > 1 else ''} only: {'; '.join(titles)}." for count, titles in fewer.items()
    ]
    run = sum(any(cell.members[0] for cell in row.cells.values()) for row in table.rows)
    for (family, some, every), titles in partly.items():
        by = "" if len(titles) == run else f" by {'; '.join(titles)}"
        lines.append(f"{family}: {some} of its {every} sets were scored{by}.")
    return lines


def as_rich(table: Table) -> RichTable:
    """For a terminal."""
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=f"{table.setting.title}, {table.budget}", title_justify="left")
    for place, heading in enumerate(headings(table)):
        shown.add_column(heading, no_wrap=True, justify="left" if place == 0 else "right")
    for row in table.rows:
        cells = [Text(text) for text in texts(row, paper=in_paper(table))]
        width = 2 if in_paper(table) else 1
        for place, cell in enumerate(row.cells.values()):
            cells[1 + width * place].stylize("bold red" if cell.differs else "bold")
        shown.add_row(*cells)
    return shown


def as_markdown(table: Table) -> str:
    """For a text file."""
    rows = [headings(table), ["---"] * len(headings(table)), *(texts(row, paper=in_paper(table)) for row in table.rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([f"**{table.setting.title}, {table.budget}**", "", *lines, "", *caption(table)]) + "\n"


def as_plain(table: Table) -> dict[str, Any]:
    """For JSON."""
    return {
        "setting": table.setting.name,
        "budget": table.budget,
        "seeds": list(table.seeds),
        "points": table.points,
        "queries": table.queries,
        "training": dict(table.training),
        "accuracy": None if table.accuracy is None else asdict(table.accuracy),
        "paper_accuracy": None if table.setting.accuracy is None else asdict(table.setting.accuracy),
        "rows": [
            {
                "method": row.method,
                "title": row.title,
                "kept_copies": row.copies,
                "fit_seconds": row.seconds,
                "auroc": {family: {**asdict(cell), "differs": cell.differs} for family, cell in row.cells.items()},
            }
            for row in table.rows
        ],
    }


def as_csv(table: Table) -> str:
    """One line for each method and family."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["mean", "spread", "networks", "paper_mean", "paper_spread", "differs"]
    writer.writerow(["setting", "budget", "method", "outside", *names])
    for row in table.rows:
        for family, cell in row.cells.items():
            ours = ["", "", 0] if cell.ours is None else [*_rounded(cell.ours), cell.ours.seeds]
            paper = ["", ""] if cell.paper is None else [cell.paper.mean, cell.paper.spread]
            writer.writerow([table.setting.name, table.budget, row.method, family, *ours, *paper, int(cell.differs)])
    return text.getvalue()


def _rounded(ours: Measured) -> list[float | None]:
    """Mean and spread without the last digits, in which versions of Python differ."""
    return [round(ours.mean, 9), None if ours.spread is None else round(ours.spread, 9)]
