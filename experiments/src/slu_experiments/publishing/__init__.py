"""Results that go into the repository: small files of runs, and the tables, figures and report made of them alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from slu.errors import SettingError, StorageError
from slu_experiments.choosing import Wanted, chosen, same_run
from slu_experiments.figures import FIGURES, Request
from slu_experiments.publishing.advice import headline
from slu_experiments.publishing.costs import read_costs
from slu_experiments.publishing.page import FIGURES as SHOWN
from slu_experiments.publishing.page import Report, paper_settings
from slu_experiments.publishing.provenance import Notes
from slu_experiments.publishing.records import as_text, file_name, read_runs
from slu_experiments.results import Result, Store, replaced
from slu_experiments.running import Run
from slu_experiments.settings import METHODS, Setting

PAGE = "README.md"
BEGIN, END = "<!-- headline: begin -->", "<!-- headline: end -->"

__all__ = [
    "BEGIN",
    "END",
    "PAGE",
    "collect",
    "file_name",
    "made_of",
    "paper_settings",
    "read_runs",
    "report_of",
    "with_headline",
    "write_figures",
    "write_texts",
]


def collect(
    store: Store, settings: Sequence[Setting], wanted: Wanted, folder: Path, warn: Callable[[str], None]
) -> list[Path]:
    """Write the file of each setting that has results; those of others stay.

    Runs that a file has and the store has not stay in it, if they belong to the others: they may come from a machine
    that is gone.

    Args:
        store: Where the results lie.
        settings: Whose.
        wanted: Of which kind, where there are several.
        folder: Where the files go.
        warn: Called with what has no results.

    Raises:
        DamagedFileError, SettingError: As `chosen` does.
        StorageError: There are no results at all.
    """
    with_results = {result.config["setting"] for result in store.all("score")}
    written = []
    for setting in settings:
        if setting.name in with_results:
            path = folder / file_name(setting.name)
            results = chosen(store, setting, None, wanted)
            replaced(path, as_text([*results, *_kept(path, results, warn)]))
            written.append(path)
        else:
            warn(f"no results of {setting.name}")
    if not written:
        raise StorageError(
            f"there are no results of the paper's settings below {store.runs}; make them with slu-paper reproduce"
        )
    return written


def _kept(path: Path, results: Sequence[Result], warn: Callable[[str], None]) -> list[Result]:
    """The runs of a file that can stand beside the results, without those that were made again."""
    kept, left_out = [], 0
    kind = {name: results[0].config[name] for name in ("setting", "points", "queries", "training")}
    for published in read_runs(path) if path.exists() else ():
        own = {name: published.config[name] for name in ("method", "seed", "budget")}
        if any(own == {name: result.config[name] for name in own} for result in results):
            continue
        if own["method"] in METHODS and same_run(published.config, Run(**kind, **own).config()):
            kept.append(published)
        else:
            left_out += 1
    if left_out:
        warn(f"{left_out} runs of {path.name} are left out: they are of another kind, or their settings have changed")
    return kept


def report_of(folder: Path) -> Report:
    """The report on the published runs of a folder.

    Raises:
        StorageError: It has none.
    """
    paths = {setting.name: folder / file_name(setting.name) for setting in paper_settings()}
    published = {name: read_runs(path) for name, path in paths.items() if path.exists()}
    if not published:
        raise StorageError(
            f"there are no published runs in {folder}; collect them with slu-paper publish --out RESULTS"
        )
    costs = {setting.name: read_costs(folder, setting) for setting in paper_settings()}
    return Report(published, Notes.read(folder), costs)


def made_of(report: Report) -> dict[str, str]:
    """Contents of the page and of the tables, by names of files."""
    return {PAGE: report.page(), **report.csv()}


def write_texts(report: Report, folder: Path) -> list[Path]:
    """Write page and tables."""
    return [replaced(folder / name, text) for name, text in made_of(report).items()]


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Draw the figures that need nothing but published runs."""
    paths = []
    for setting in report.settings:
        for name in SHOWN:
            paths.append(folder / f"{setting.name}-{name}.png")
            FIGURES[name].draw(report.results(setting), Request(setting.name), paths[-1])
    return paths


def with_headline(text: str, report: Report) -> str:
    """A text with the headline table between its two markers.

    Raises:
        SettingError: It has no such markers.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SettingError(
            f"the headline table goes between the lines {BEGIN} and {END}; add them where it should stand"
        )
    return "\n".join([f"{before}{BEGIN}", *headline(report.blocks), f"{END}{after}"])
