"""`slu-paper data`: which data sets there are, getting them, and whether they are whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slu.errors import DataError, unknown
from slu.progress import Bar
from slu_experiments.cli.shared import Json

if TYPE_CHECKING:
    from slu_experiments.data.catalogue import Entry
    from slu_experiments.data.checking import Finding

_NAME, _STATE = 13, 9  # columns of the report
_MEGABYTE = 1 << 20

Folder = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of the data sets.", envvar="SLU_DATA", show_envvar=True, metavar="FOLDER"),
]


def _known(incomplete: str) -> list[str]:
    from slu_experiments.data.catalogue import CATALOGUE

    return [name for name in CATALOGUE if name.startswith(incomplete)]


app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")


@app.callback()
def data() -> None:
    """List, fetch and check the data sets of the experiments.

    They lie below one folder, which --data or the variable SLU_DATA names, each laid out as it
    comes from upstream. Nothing is downloaded unless you say `slu-paper data fetch`.
    """


@app.command(name="list")
def list_sets(root: Folder = None, as_json: Json = False) -> None:
    """Show every data set that is known: what it holds, whether it is here, its licence, its home.

    Here means that its files are, not that they are whole: that is what `slu-paper data check` finds out.
    """
    from slu_experiments.data.catalogue import CATALOGUE

    root = _named(root)
    here = {name: _presence(entry, root) for name, entry in CATALOGUE.items()}
    if as_json:
        typer.echo(json.dumps([{**asdict(entry), "here": here[entry.name]} for entry in CATALOGUE.values()], indent=2))
        return
    _tell_places(root)
    for entry in CATALOGUE.values():
        _tell_entry(entry, here[entry.name])
    _tell_shifts()


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Only these; all that are known by default.")] = None,
    root: Folder = None,
    as_json: Json = False,
) -> None:
    """Read the data sets and compare sizes, counts and checksums with upstream's.

    A set is **whole**, there in **part** (some of its points, or other versions of them), **missing** or
    **damaged**. The exit code is 1 if one is damaged, or one that was named is missing.
    """
    from slu_experiments.data.catalogue import CATALOGUE
    from slu_experiments.data.checking import DAMAGED, MISSING
    from slu_experiments.data.checking import check as look
    from slu_experiments.data.places import folder

    entries = _entries(names) if names else list(CATALOGUE.values())
    root = folder(root) if root else None
    findings: list[Finding] = []
    for entry in entries:
        findings.append(look(entry, root))
        if not as_json:
            _tell_finding(entry, findings[-1])
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _tell_total(findings, root)
    if any(finding.state == DAMAGED or (names and finding.state == MISSING) for finding in findings):
        raise typer.Exit(1)


@app.command()
def fetch(
    names: Annotated[
        list[str], typer.Argument(help="As `slu-paper data list` has them.", metavar="NAME...", autocompletion=_known)
    ],
    root: Folder = None,
    as_json: Json = False,
) -> None:
    """Download data sets, compare their checksums and unpack them.

    What is here already is left alone. A download that was stopped goes on where it was. Look at
    the licence first (`slu-paper data list`): some sets are for research only.
    """
    from slu_experiments.data.fetching import fetch as bring
    from slu_experiments.data.places import named

    entries = _entries(names)
    below = _make(named(root))
    done: dict[str, dict[str, str]] = {}
    for entry in entries:
        if not as_json:
            typer.echo(f"{entry.name}: {entry.title}. Licence: {entry.licence}. Home: {entry.home}")
        done[entry.name] = bring(entry, below, Megabytes)
        if not as_json:
            for path, what in (done[entry.name] or {"nothing": "needed"}).items():
                typer.echo(f"  {what:<9}{path}")
    if as_json:
        typer.echo(json.dumps(done, indent=2))


def _named(root: Path | None) -> Path | None:
    from slu_experiments.data.places import named

    return named(root) if root else None


def _entries(names: list[str]) -> list[Entry]:
    from slu_experiments.data.catalogue import CATALOGUE

    for name in names:
        if name not in CATALOGUE:
            raise unknown("data set", name, CATALOGUE)
    return [CATALOGUE[name] for name in dict.fromkeys(names)]


def _presence(entry: Entry, root: Path | None) -> str:
    """Whether the files are there, from their names alone."""
    from slu_experiments.data.checking import expected

    if not entry.folder:
        return "here"
    if root is None or not (root / entry.folder).is_dir():
        return "no"
    files = [*expected(entry), *(each.unpacks_to for each in entry.downloads if each.unpacks_to)]
    there = [(root / file).exists() for file in files]
    return "here" if all(there) else "part"


def _make(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise DataError(f"cannot make the folder {folder} ({reason.strerror}); name another with --data") from reason
    return folder


class Megabytes:
    """A progress bar for pooch with one step per megabyte; shown in a terminal alone.

    Args:
        file: The name of the file.
        done: Bytes of it that are already there.
    """

    def __init__(self, file: str, done: int) -> None:
        self.total = 0
        self._file, self._before, self._done = file, done, done
        self._steps = done // _MEGABYTE
        self._bar: Bar | None = None

    def update(self, count: int) -> None:
        """So many more bytes are there; pooch sets the total before the first call."""
        if self._bar is None:
            whole = -(-(self._before + self.total) // _MEGABYTE) if self.total else None
            self._bar = Bar(f"{self._file}, MB", whole, done=self._steps).__enter__()
        self._done += count
        while self._steps < self._done // _MEGABYTE:
            self._bar.advance()
            self._steps += 1

    def reset(self) -> None:
        """Before its last update, of all that came, pooch starts to count anew."""
        self._done = self._before

    def close(self) -> None:
        """Take the bar away, also where the download was stopped."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None


def _tell_places(root: Path | None) -> None:
    """Where the data sets are looked for."""
    where = (
        f"data sets below {root}" if root else "no folder of data sets is named: use --data or export SLU_DATA=FOLDER"
    )
    typer.echo(where)
    typer.echo("")


def _tell_entry(entry: Entry, here: str) -> None:
    """A set as upstream has it, in two lines."""
    typer.echo(f"{entry.name:<{_NAME}}{here:<{_STATE}}{entry.title}: {_counts(entry.counts)}; {entry.what}")
    typer.echo(f"{'':<{_NAME + _STATE}}licence: {entry.licence}; {entry.home}")


def _tell_shifts() -> None:
    """The sets that are made from others."""
    from slu_experiments.data.corruptions import KINDS
    from slu_experiments.data.opening import families

    typer.echo("\nmade from these as they are read")
    for family, members in families().items():
        few = ", ".join(members) if len(members) <= 3 else f"{members[0]}, {members[1]} … {members[-1]}"
        typer.echo(f"  {family:<20}{len(members)} sets: {few}")
    typer.echo(f"  cifar10-KIND-SEVERITY for severities 1 to 5 and the kinds {', '.join(KINDS)}")
    typer.echo("  uci-NAME-SPLIT for another split of a table than the first")


def _tell_finding(entry: Entry, finding: Finding) -> None:
    """What was found of a set, and below it what differs from upstream."""
    parts = ", ".join(
        f"{part} {count:,}" if count == entry.counts[part] else f"{part} {count:,} of {entry.counts[part]:,}"
        for part, count in (finding.counts or dict.fromkeys(entry.counts, 0)).items()
    )
    sums = f"; {finding.fitting} of {finding.compared} checksums fit" if finding.compared else ""
    typer.echo(f"{finding.name:<{_NAME}}{finding.state:<{_STATE}}{parts}{sums}")
    for remark in finding.remarks:
        typer.echo(f"{'':<{_NAME + _STATE}}{remark}")


def _tell_total(findings: Sequence[Finding], root: Path | None) -> None:
    """How many sets are in which state, and what to do about the rest."""
    from slu_experiments.data.checking import MISSING, STATES

    states = [finding.state for finding in findings]
    total = ", ".join(f"{states.count(state)} {state}" for state in STATES)
    typer.echo(f"\n{total}; below {root or 'no folder: name one with --data or SLU_DATA'}")
    if MISSING in states:
        typer.echo(
            "get what is missing with: slu-paper data fetch NAME; `slu-paper data list` has licences and addresses"
        )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {part}" for part, count in counts.items())
