"""`slu-paper table`: the paper's table beside ours."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from slu.errors import unknown
from slu_experiments.cli.shared import (
    OUT,
    Epochs,
    Json,
    Out,
    Points,
    Queries,
    SettingName,
    Subset,
    print_whole,
    training_of,
)

if TYPE_CHECKING:
    from slu_experiments.tables import Table

FORMATS = ("terminal", "markdown", "csv", "json")


def table(  # noqa: PLR0913 (a command's options)
    setting: SettingName,
    budget: Annotated[str, typer.Option(help="Memory that methods keep: 3p or 10p in the paper.")] = "3p",
    seeds: Annotated[list[int] | None, typer.Option(help="Networks; without it, all there are.")] = None,
    methods: Annotated[list[str] | None, typer.Option(help="slu lla de …; without it, all there are.")] = None,
    points: Points = None,
    queries: Queries = None,
    epochs: Epochs = None,
    subset: Subset = None,
    style: Annotated[str, typer.Option("--format", help="terminal, markdown, csv or json.")] = "terminal",
    out: Out = OUT,
    as_json: Json = False,
) -> None:
    """Print the paper's table beside ours: AUROC, mean and spread over networks.

    The table is made of the results below OUT/runs alone; nothing is trained or fitted. Make them
    with `slu-paper reproduce`, or one at a time with `slu-paper score`. Numbers further from the paper's than two
    of its spreads are marked with an exclamation mark. Rows "as run" have the options that follow what
    the paper's authors ran where that differs from the mathematics.
    """
    from slu_experiments.choosing import Wanted, chosen
    from slu_experiments.results import Store
    from slu_experiments.settings import find_method, find_setting
    from slu_experiments.tables import tabulate

    style = "json" if as_json else style
    if style not in FORMATS:
        raise unknown("format", style, FORMATS)
    definition = find_setting(setting)
    named = [find_method(name).name for name in methods] if methods else None
    wanted = Wanted(seeds or None, named, points, queries, training_of(epochs, subset))
    results = chosen(Store(out), definition, budget, wanted)
    show(tabulate(results, definition, budget, only=wanted.methods), style)


def show(made: Table, style: str) -> None:
    """Print a table in one of the formats."""
    from rich.console import Console

    from slu_experiments.tables import as_csv, as_markdown, as_plain, as_rich, caption

    if style == "json":
        typer.echo(json.dumps(as_plain(made), indent=2))
    elif style in ("csv", "markdown"):
        typer.echo(as_csv(made) if style == "csv" else as_markdown(made), nl=False)
    else:
        print_whole(as_rich(made))
        for line in caption(made):
            Console(highlight=False).print(line, markup=False)
