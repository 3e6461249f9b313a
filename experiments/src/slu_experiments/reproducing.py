"""A whole setting: every method on every network, then tables and figures of what came out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from slu.errors import SluError, StorageError
from slu_experiments.choosing import Wanted, chosen, same_run
from slu_experiments.figures import FIGURES, Request
from slu_experiments.results import Result, name_of, replaced
from slu_experiments.running import Place, Run, available
from slu_experiments.settings import Setting, find_method, find_setting, usual_methods
from slu_experiments.settings.methods import MEMBERS
from slu_experiments.sharing import execute_all
from slu_experiments.tables import Table, as_csv, as_markdown, as_plain, tabulate


@dataclass
class Report:
    """What came out of a plan.

    Attributes:
        tables: One per budget.
        files: Written for them.
        made, existing, published: Runs that were made now, that were there, and that were published before.
        missing: Outside sets that could not be had, and why.
        failures: Why, by what failed.
    """

    tables: list[Table] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    made: int = 0
    existing: int = 0
    published: int = 0
    missing: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def disjoint(seeds: Sequence[int], members: int) -> list[int]:
    """First seeds of ensembles that share no network; of several, those that need no further one.

    >>> disjoint(range(1, 11), 3), disjoint(range(1, 11), 10), disjoint([4], 3)
    ([1, 4, 7], [1], [4])
    """
    firsts: list[int] = []
    for seed in sorted(seeds):
        fits = seed >= firsts[-1] + members and seed + members - 1 <= max(seeds) if firsts else True
        firsts += [seed] if fits else []
    return firsts


@dataclass(frozen=True)
class Plan:
    """What is to be reproduced.

    Attributes:
        setting: Name of it.
        budgets: "3p", "10p".
        seeds: Of networks; empty for the paper's.
        methods: Names in the table; empty for the usual ones.
        published: Runs that were published, which are not made again.
        points, queries, training: As of a `Run`.
    """

    setting: str
    budgets: tuple[str, ...] = ("3p",)
    seeds: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()
    published: Sequence[Result] = ()
    points: int | None = None
    queries: int | None = None
    training: Mapping[str, int] = field(default_factory=dict)

    def runs(self, outside: tuple[str, ...]) -> Iterator[Run]:
        """Network by network, so that the first is done first."""
        setting = find_setting(self.setting)
        methods = [find_method(name).name for name in self.methods] or usual_methods(setting)
        seeds = self.seeds or setting.seeds
        for seed in seeds:
            for budget in self.budgets:
                for method in methods:
                    if seed not in _seeds_of(method, setting, budget, seeds):
                        continue
                    yield Run(
                        self.setting,
                        method,
                        seed=seed,
                        budget=budget,
                        outside=outside,
                        points=self.points,
                        queries=self.queries,
                        training=self.training,
                    )

    def carry_out(self, place: Place, *, tell: Callable[[str], None], warn: Callable[[str], None]) -> Report:
        """Do everything that is not done yet.

        Args:
            place: Where data come from and results go to.
            tell: Called with what is being done.
            warn: Called with what is missing, and with what failed and why; the rest goes on.

        Raises:
            SluError: Nothing came out at all.
        """
        setting, report = find_setting(self.setting), Report()
        for budget in self.budgets:
            setting.numbers(budget)  # refused before hours are spent on another
        outside, missing = available(setting, (), place.data)
        for name, why in missing.items():
            report.missing[name] = why
            warn(f"without {name}: {why}")
        runs = list(self.runs(tuple(outside)))
        done: list[Result] = []
        numbered = list(enumerate(runs, 1))
        for _, group in groupby(numbered, lambda each: each[1].seed):
            due = self._announced(group, len(runs), report, tell)
            for run, result, made in execute_all(due, place, tell):
                if isinstance(result, SluError):
                    report.failures[_name(run)] = str(result)
                    warn(f"{_name(run)}: {result}")
                    continue
                done.append(result)
                report.made, report.existing = report.made + made, report.existing + (not made)
        if report.published == len(runs):
            return report
        if not done:
            raise StorageError(f"none of the {len(runs)} runs of {self.setting} came out; see above for why")
        self._show(report, setting, done, place)
        return report

    def _announced(
        self, numbered: Iterable[tuple[int, Run]], count: int, report: Report, tell: Callable[[str], None]
    ) -> Iterator[Run]:
        """Those that were not published, each told of before it is made."""
        for number, run in numbered:
            if any(same_run(run.config(), result.config) for result in self.published):
                report.published += 1
                continue
            tell(f"{number} of {count}: {_name(run)}")
            yield run

    def _show(self, report: Report, setting: Setting, done: list[Result], place: Place) -> None:
        """Tables and figures of all networks that were ever done this way, not of these alone."""
        kind = Wanted(self.seeds or None, self.methods or None, self.points, self.queries, self.training)
        ending = self._ending(setting)
        shown = []
        for budget in (each for each in self.budgets if any(result.config["budget"] == each for result in done)):
            results = chosen(place.store, setting, budget, kind)
            shown += results
            report.tables.append(tabulate(results, setting, budget, only=kind.methods))
            report.files += _written(report.tables[-1], place.out / "tables", ending)
        folder = place.out / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        request = Request(setting.name, methods=self.methods)
        for name in ("budget", "memory"):
            path = folder / f"{setting.name}-{name}{ending}.png"
            FIGURES[name].draw(shown, request, path)
            report.files.append(path)

    def _ending(self, setting: Setting) -> str:
        """Nothing for a setting as it is; files of a quick try or of a few methods replace no others."""
        asked = {"points": self.points, "queries": self.queries, "training": dict(self.training)}
        usual = self.points in (None, setting.points) and self.queries is None and not self.training
        if self.methods:
            asked, usual = asked | {"methods": sorted(self.methods)}, False
        return "" if usual else f"-{name_of(asked)[:8]}"


def _name(run: Run) -> str:
    return f"{find_method(run.method).title}, {run.budget}, network {run.seed}"


def _seeds_of(method: str, setting: Setting, budget: str, seeds: Sequence[int]) -> Sequence[int]:
    choice = find_method(method)
    return disjoint(seeds, choice.settings(setting, budget)["members"]) if choice.fitted_on == MEMBERS else seeds


def _written(table: Table, folder: Path, ending: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "md": as_markdown(table),
        "csv": as_csv(table),
        "json": json.dumps(as_plain(table), indent=1, allow_nan=False) + "\n",
    }
    paths = []
    for kind, text in texts.items():
        paths.append(replaced(folder / f"{table.setting.name}-{table.budget}{ending}.{kind}", text))
    return paths
