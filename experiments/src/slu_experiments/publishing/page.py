"""The page that reads like a report, and the tables beside it, from published runs alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from slu_experiments.publishing import agreement, provenance
from slu_experiments.publishing.advice import markdown, picks, signed, title_of, words
from slu_experiments.publishing.blocks import LOSS, OURS, TIE, WIN, Block, Contest
from slu_experiments.publishing.costs import Measurement, cost_table
from slu_experiments.publishing.provenance import Notes, listed
from slu_experiments.results import Result
from slu_experiments.settings import METHODS, SETTINGS, Setting
from slu_experiments.tables import accuracy_text, as_csv, as_markdown, tabulate

FIGURES = ("memory", "budget")
CHECKED = ("mnist-mlp", "fmnist-lenet")
"""The settings whose accuracies and cells are held against the paper's."""

_AGAIN = "Made with `slu-paper publish` from the runs of the tables under each setting, where their commands stand."
_ABOUT = (
    "AUROC of telling test points of the data that a network was trained on from those of other sets: 0.5 is guessing, "
    "1 is perfect. Means ± standard deviations over networks; a family of sets, such as 12 rotations, counts as one. "
    "Kept: memory beside the network, in copies of its parameters (p). Seconds are orders of magnitude; those of an "
    "ensemble leave out the training of its networks. SLU is the paper's score; SLU, combined is the library's default."
    "\n\n"
    "This page and the tables beside it are written by `slu-paper publish` from the files `runs-*.json`, not by hand; "
    f"causes and remarks are those of `{provenance.NOTES}`."
)
_PICKED = "The pick has the highest mean over families of the methods that keep no more than the budget."
_COUNTED = (
    "Wins / ties / losses by the mean over families; in brackets by single families. Each is a comparison with one "
    "other method (the paper's as printed and as run count as two) on the networks that both were run on: a win where "
    "Student's 95 % interval of the mean paired difference is above 0, a loss where it is below, a tie otherwise. With "
    "one network in common there is no verdict: open; of two the interval is an unsteady estimate. Intervals are not "
    "widened for their number. What each other method keeps is said under the settings: SWAG two copies more than the "
    "budget, scores of outputs nothing."
)
_CELLS = (
    "A cell is one of the paper's methods on one family of sets. It comes out again if our mean is within two of the "
    "paper's spreads of its mean; cells to which the paper gives no spread are left out. As printed: the method by its "
    "formulas. As run: with the authors' options, or with their prior, where there is such a row. "
    f"The aim is {agreement.AIM:.0%} on MNIST and FashionMNIST."
)
_NONE = "–"


def paper_settings() -> list[Setting]:
    """Those of the paper's tables."""
    return [setting for setting in SETTINGS.values() if setting.accuracy is not None]


class Report:
    """What is made of published runs.

    Args:
        published: Results by the name of their setting.
        notes: What runs do not know of themselves.
        costs: Measurements of networks that were not judged, by the name of their setting.
    """

    def __init__(
        self,
        published: Mapping[str, Sequence[Result]],
        notes: Notes,
        costs: Mapping[str, Sequence[Measurement]] | None = None,
    ) -> None:
        self._published, self._notes, self._costs = published, notes, costs or {}
        self.settings = [setting for setting in paper_settings() if published.get(setting.name)]
        every = [Block(published[each.name], each, budget) for each in self.settings for budget in each.budgets]
        self.blocks = [block for block in every if block.results]
        self.tables = [tabulate(block.results, block.setting, block.budget) for block in self.blocks]

    def results(self, setting: Setting) -> Sequence[Result]:
        """The runs of a setting, at every budget."""
        return self._published[setting.name]

    def csv(self) -> dict[str, str]:
        """Contents by names of files: one per table of the paper, and the comparisons over networks."""
        tables = {f"{table.setting.name}-{table.budget}.csv": as_csv(table) for table in self.tables}
        return {**tables, "comparisons.csv": self._comparisons()}

    def _comparisons(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = ["ours", "other", "family", "networks", "difference", "low", "high", "verdict"]
        writer.writerow(["setting", "budget", *names])
        for block in self.blocks:
            for ours in (name for name in OURS if name in block.methods):
                over = block.contests(ours, block.others)
                for each in (*over, *block.contests(ours, block.others, by_family=True)):
                    numbers = [each.networks, each.difference, *(each.interval or ("", "")), each.verdict or ""]
                    names = [ours, each.other, each.family or "mean over families"]
                    writer.writerow([block.setting.name, block.budget, *names, *numbers])
        return text.getvalue()

    def page(self) -> str:
        """The report, as Markdown."""
        sections = [
            ["# The paper's experiments, run again"],
            self._state(),
            [_ABOUT],
            ["## Which method would I pick?", "", *self._advice()],
            ["## Does SLU beat the rest at equal memory?", "", *self._wins()],
            ["## Test accuracies", "", *self._accuracies()],
            ["## Do the paper's numbers come out again?", "", *self._agreement()],
            *(self._section(setting) for setting in paper_settings()),
            self._further(),
            ["## What is missing", "", *self._missing()],
        ]
        return "\n\n".join("\n".join(section) for section in sections if section) + "\n"

    def _state(self) -> list[str]:
        """First of all: which runs there are, and which not."""
        texts = []
        for setting in self.settings:
            wanted, runs = provenance.expected(setting), provenance.present(self._published[setting.name])
            if wanted - runs:
                texts.append(f"{len(wanted & runs)} of {len(wanted)} runs of {setting.title}")
        without = [setting.title for setting in paper_settings() if setting not in self.settings]
        texts += [f"no runs of {'; '.join(without)}"] if without else []
        if not texts:
            return ["Every run of the paper's tables is here."]
        return [f"**This is a part: there are {', and '.join(texts)}.** [What is missing](#what-is-missing) lists it."]

    def _advice(self) -> list[str]:
        items = [line for block in self.blocks for line in words(block)]
        return [*picks(self.blocks), "", f"{_PICKED} {_AGAIN}", "", *items]

    def _wins(self) -> list[str]:
        ours = [name for name in OURS if any(name in block.methods for block in self.blocks)]
        rows = [["data", "budget", "networks", "against", *(title_of(name) for name in ours)]]
        groups = {"the paper's methods": True, "scores of outputs and features": False}
        for what, in_paper in groups.items():
            for block in self.blocks:
                cells = [_counts([block], name, in_paper) for name in ours]
                rows.append([block.setting.title, block.budget, listed(block.seeds), what, *cells])
            rows.append(["**all**", "", "", what, *(_counts(self.blocks, name, in_paper) for name in ours)])
        return [_COUNTED, "", *markdown(rows), "", f"{_AGAIN} `comparisons.csv` has every interval."]

    def _accuracies(self) -> list[str]:
        rows = [["data", "networks", "ours", "paper", f"within {agreement.CLOSE}"]]
        for setting in self.settings:
            ours = agreement.accuracy(self._published[setting.name])
            if ours is not None and setting.accuracy is not None:
                networks = f"{ours.seeds} of the paper's {len(setting.seeds)}"
                close = "yes" if agreement.is_close(ours, setting.accuracy) else "**no**"
                rows.append([setting.title, networks, str(ours), accuracy_text(setting.accuracy), close])
        return [*markdown(rows), "", _AGAIN]

    def _agreement(self) -> list[str]:
        ways = (agreement.PRINTED, agreement.RUN)
        rows = [["data", "budget", *(f"{way}, cells within" for way in ways)]]
        cells = {way: [agreement.compared(table, way) for table in self.tables] for way in ways}
        for place, table in enumerate(self.tables):
            rows.append([table.setting.title, table.budget, *(_share(cells[way][place]) for way in ways)])
        held = [place for place, table in enumerate(self.tables) if table.setting.name in CHECKED]
        of_held = {way: [cell for place in held for cell in cells[way][place]] for way in ways}
        rows.append(["**MNIST and FashionMNIST**", "all", *(_share(of_held[way]) for way in ways)])
        far = {
            (each.table.setting.name, each.table.budget, each.method, each.family): each
            for way in ways
            for one in cells[way]
            for each in agreement.differing(one)
        }
        lines = [_CELLS, "", *markdown(rows), "", _AGAIN]
        if far:
            lines += [
                "",
                "The cells that do not, further rows of the same method that do, and which of the causes below:",
                "",
                *self._causes(far.values()),
            ]
        return lines

    def _causes(self, far: Iterable[agreement.Compared]) -> list[str]:
        rows = [["data", "budget", "method", "set", "ours", "paper", "within two spreads", "cause"]]
        numbers: dict[str, int] = {}
        for each in far:
            names = [each.table.setting.title, each.table.budget, METHODS[each.method].title, each.family]
            cells = [str(each.cell.ours), str(each.cell.paper), "; ".join(each.others) or "none"]
            number = numbers.setdefault(each.cause(self._notes.causes), len(numbers) + 1)
            rows.append([*names, *cells, f"({number})"])
        return [*markdown(rows), "", *(f"{number}. {cause}" for cause, number in numbers.items())]

    def _section(self, setting: Setting) -> list[str]:
        remarks, costs = self._notes.remarks.get(setting.name, ()), self._costs.get(setting.name, ())
        if setting not in self.settings and not remarks and not costs:
            return []
        lines = [f"## {setting.title}", *(["", *remarks] if remarks else [])]
        lines += ["", *cost_table(costs)] if costs else []
        for block, table in zip(self.blocks, self.tables, strict=True):
            if block.setting is setting:
                lines += ["", f"### {block.title}", "", *as_markdown(table).splitlines()[2:]]
                lines += ["", *provenance.origin(block, self._notes), "", *_pairs(block)]
        for name in FIGURES if setting in self.settings else ():
            lines += ["", f"![{setting.title}: {name}]({setting.name}-{name}.png)"]
        return lines

    def _further(self) -> list[str]:
        pictures = [line for name, text in self._notes.figures.items() for line in ("", f"![{name}]({name})", "", text)]
        return ["## Further figures", *pictures] if pictures else []

    def _missing(self) -> list[str]:
        lines = []
        for setting in paper_settings():
            if setting not in self.settings:
                lines.append(f"- **{setting.title}**: every run.")
                continue
            lacking = provenance.missing(setting, self._published[setting.name])
            lines += [f"- **{setting.title}**: {' '.join(lacking)}"] if lacking else []
        return lines or ["Nothing."]


def _counts(blocks: Sequence[Block], ours: str, in_paper: bool) -> str:
    """Of one of ours against the paper's methods, or against the others, in some blocks."""
    over, single = [], []
    for block in blocks:
        others = [name for name in block.others if (METHODS[name].paper is not None) == in_paper]
        over += block.contests(ours, others)
        single += block.contests(ours, others, by_family=True)
    return f"{_tally(over)} ({_tally(single)})" if over else _NONE


def _tally(contests: Iterable[Contest]) -> str:
    verdicts = [each.verdict for each in contests]
    told = " / ".join(str(verdicts.count(verdict)) for verdict in (WIN, TIE, LOSS))
    return f"{told}, {verdicts.count(None)} open" if None in verdicts else told


def _share(cells: Sequence[agreement.Compared]) -> str:
    share = agreement.share(cells)
    if share is None:
        return _NONE
    return f"{len(cells) - len(agreement.differing(cells))} of {len(cells)} ({share:.0%})"


def _pairs(block: Block) -> list[str]:
    """Every comparison of ours with another method, over families."""
    ours = [name for name in OURS if name in block.methods]
    if not ours or not block.others:
        return []
    rows = [["against", "kept", *(title_of(name) for name in ours)]]
    for other in block.others:
        standing = block.standing(other)
        contests = [block.contest(name, other) for name in ours]
        cells = [_NONE if each is None else f"{signed(each)}: {each.verdict or 'open'}" for each in contests]
        rows.append([METHODS[other].title, _NONE if standing is None else f"{standing.copies:.2f}p", *cells])
    return [f"Ours minus each other method, in mean AUROC over families, {block.budget}:", "", *markdown(rows)]
