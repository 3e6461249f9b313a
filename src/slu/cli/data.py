"""`slu data`: which data sets there are, getting them, and whether they are whole."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slu.cli.data_report import tell_entry, tell_finding, tell_places, tell_shifts, tell_total
from slu.cli.shared import Json
from slu.errors import DataError, unknown

if TYPE_CHECKING:
    from slu.experiments.data.checking import Finding
    from slu.experiments.data.entries import Entry

Folder = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of the data sets.", envvar="SLU_DATA", show_envvar=True, metavar="FOLDER"),
]


def _known(incomplete: str) -> list[str]:
    from slu.experiments.data.catalogue import CATALOGUE

    return [name for name in CATALOGUE if name.startswith(incomplete)]


app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")


@app.callback()
def data() -> None:
    """List, fetch and check the data sets of the experiments.

    They lie below one folder, which --data or the variable SLU_DATA names, each laid out as it
    comes from upstream. Nothing is downloaded unless you say `slu data fetch`.
    """


@app.command(name="list")
def list_sets(root: Folder = None, as_json: Json = False) -> None:
    """Show every data set that is known: what it holds, whether it is here, its licence, its home.

    Here means that its files are, not that they are whole: that is what `slu data check` finds out.
    """
    from slu.experiments.data.catalogue import CATALOGUE

    root = _named(root)
    here = {name: _presence(entry, root) for name, entry in CATALOGUE.items()}
    if as_json:
        typer.echo(json.dumps([{**asdict(entry), "here": here[entry.name]} for entry in CATALOGUE.values()], indent=2))
        return
    tell_places(root)
    for entry in CATALOGUE.values():
        tell_entry(entry, here[entry.name])
    tell_shifts()


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
    from slu.experiments.data.catalogue import CATALOGUE
    from slu.experiments.data.checking import DAMAGED, MISSING
    from slu.experiments.data.checking import check as look
    from slu.experiments.data.places import folder

    entries = _entries(names) if names else list(CATALOGUE.values())
    root = folder(root) if root else None
    findings: list[Finding] = []
    for entry in entries:
        findings.append(look(entry, root))
        if not as_json:
            tell_finding(entry, findings[-1])
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        tell_total(findings, root)
    if any(finding.state == DAMAGED or (names and finding.state == MISSING) for finding in findings):
        raise typer.Exit(1)


@app.command()
def fetch(
    names: Annotated[
        list[str], typer.Argument(help="As `slu data list` has them.", metavar="NAME...", autocompletion=_known)
    ],
    root: Folder = None,
    as_json: Json = False,
) -> None:
    """Download data sets, compare their checksums and unpack them.

    What is here already is left alone. A download that was stopped goes on where it was. Look at
    the licence first (`slu data list`): some sets are for research only.
    """
    from slu.cli.data_progress import Bars
    from slu.experiments.data.fetching import fetch as bring
    from slu.experiments.data.places import named

    entries = _entries(names)
    below = _make(named(root))
    done: dict[str, dict[str, str]] = {}
    for entry in entries:
        if not as_json:
            typer.echo(f"{entry.name}: {entry.title}. Licence: {entry.licence}. Home: {entry.home}")
        with Bars() as bars:
            done[entry.name] = bring(entry, below, bars)
        if not as_json:
            for path, what in (done[entry.name] or {"nothing": "needed"}).items():
                typer.echo(f"  {what:<9}{path}")
    if as_json:
        typer.echo(json.dumps(done, indent=2))


def _named(root: Path | None) -> Path | None:
    from slu.experiments.data.places import named

    return named(root) if root else None


def _entries(names: list[str]) -> list[Entry]:
    from slu.experiments.data.catalogue import CATALOGUE

    for name in names:
        if name not in CATALOGUE:
            raise unknown("data set", name, CATALOGUE)
    return [CATALOGUE[name] for name in dict.fromkeys(names)]


def _presence(entry: Entry, root: Path | None) -> str:
    """Whether the files are there, from their names alone."""
    from slu.experiments.data.checking import expected

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
