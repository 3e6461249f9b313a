"""`slu-paper reproduce`: a whole setting, from training to tables and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slu_experiments.cli.shared import (
    OUT,
    Data,
    Epochs,
    Json,
    Out,
    Points,
    Queries,
    SettingName,
    Subset,
    Threads,
    at_work,
    place_of,
    tell,
    training_of,
    warn,
)
from slu_experiments.cli.table import show

if TYPE_CHECKING:
    from slu_experiments.reproducing import Plan, Report


def reproduce(  # noqa: PLR0913 (a command's options)
    setting: SettingName,
    budgets: Annotated[list[str] | None, typer.Option("--budget", "--budgets", help="3p, 10p; 3p by default.")] = None,
    seeds: Annotated[list[int] | None, typer.Option(help="Networks; without it, as many as the paper has.")] = None,
    methods: Annotated[list[str] | None, typer.Option(help="slu lla de …; without it, the usual ones.")] = None,
    published: Annotated[
        Path | None, typer.Option(help="Folder of published runs, docs/results/paper here: these are not made again.")
    ] = None,
    points: Points = None,
    queries: Queries = None,
    epochs: Epochs = None,
    subset: Subset = None,
    threads: Threads = None,
    data: Data = None,
    out: Out = OUT,
    as_json: Json = False,
) -> None:
    """Train, score, tabulate and draw a setting of the paper.

    Every run is a folder below OUT/runs; what is done is not done again, so the same command
    goes on after an interrupt or with more seeds. A method that fails is named at the end, and the
    others go on. Tables go to OUT/tables, figures to OUT/figures.

    From nothing, in a few minutes: slu-paper reproduce --setting digits-mlp

    The paper's, with one network: slu-paper reproduce --setting fmnist-lenet --seeds 1. An ensemble needs
    three networks (ten at 10p), those of the seeds from its own on; of several seeds it takes those
    with ensembles that share no network. On a small machine `--points 2000 --queries 500` take a twentieth
    of the time; such tables and figures get files of their own.
    """
    from slu_experiments.publishing import file_name, read_runs
    from slu_experiments.reproducing import Plan

    stored = None if published is None else published / file_name(setting)
    plan = Plan(
        setting,
        budgets=tuple(budgets or ("3p",)),
        seeds=tuple(seeds or ()),
        methods=tuple(methods or ()),
        published=read_runs(stored) if stored is not None and stored.exists() else (),
        points=points,
        queries=queries,
        training=training_of(epochs, subset),
    )
    with at_work(threads):
        report = plan.carry_out(place_of(out, data), tell=tell, warn=warn)
    _show(report, plan, as_json)
    if report.failures:
        raise typer.Exit(1)


def _show(report: Report, plan: Plan, as_json: bool) -> None:
    from slu_experiments.tables import as_plain

    if as_json:
        shown = {
            "setting": plan.setting,
            "tables": [as_plain(table) for table in report.tables],
            "files": [str(path) for path in report.files],
            "made": report.made,
            "found": report.existing,
            "published": report.published,
            "missing": report.missing,
            "failures": report.failures,
        }
        typer.echo(json.dumps(shown, indent=2))
        return
    for table in report.tables:
        show(table, "terminal")
        for title, family in table.differing:
            typer.echo(f"  further than two spreads from the paper's: {title} on {family}")
    elsewhere = f", {report.published} published before" if report.published else ""
    typer.echo(f"{report.made} runs made, {report.existing} found{elsewhere}, {len(report.failures)} failed")
    for path in report.files:
        typer.echo(f"  {path}")
