"""`slu-paper publish`: small files of results for the repository, and the report made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from slu.errors import SettingError, unknown
from slu_experiments.cli.shared import (
    OUT,
    Epochs,
    Json,
    Out,
    Points,
    Queries,
    Subset,
    settings,
    training_of,
    warn,
)


def publish(  # noqa: PLR0913 (a command's options)
    to: Annotated[Path, typer.Option(help="Folder of the published files, docs/results/paper here.")],
    setting: Annotated[
        list[str] | None,
        typer.Option(help="Collect these only; without it, every setting of the paper.", autocompletion=settings),
    ] = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="Collect nothing: write the page again from the files that are there.")
    ] = False,
    readme: Annotated[
        Path | None, typer.Option(help="A Markdown file that gets the headline table, between its two markers.")
    ] = None,
    points: Points = None,
    queries: Queries = None,
    epochs: Epochs = None,
    subset: Subset = None,
    out: Out = OUT,
    as_json: Json = False,
) -> None:
    """Collect results into small files, and write the report on them.

    1. The score runs below OUT/runs of each setting become TO/runs-SETTING.json, one line per run: AUROC with its
    interval, seconds, memory, accuracy, code, machine and day. Runs of settings that the code has changed since stay
    out. Files of settings that have no results stay as they are, and so do runs of the same kind that were published
    before, also from another machine.

    2. From these files alone: TO/README.md (which method to pick, wins and losses over networks, accuracies and tables
    beside the paper's, what is missing), its tables as CSV, and the figures "memory" and "budget".

    All that is there: slu-paper publish --out slu-results --to docs/results/paper

    Where a setting has results of several kinds, one at a time: slu-paper publish --setting cifar10-resnet --epochs 40
    --queries 500 --to docs/results/paper

    TO/notes.json is written by hand; all its parts may be missing. "causes": why a cell differs from the paper's, by
    setting/method/family, as in {"mnist-mlp/swag/*": "..."}; "commits": by the checksum of the source that runs note;
    "machine": of runs that do not note theirs; "remarks": lists of lines by setting; "figures": what to say of further
    pictures in the folder, by file. After editing it: slu-paper publish --stored --to docs/results/paper
    """
    from slu_experiments.choosing import Wanted
    from slu_experiments.publishing import (
        collect,
        paper_settings,
        report_of,
        with_headline,
        write_figures,
        write_texts,
    )
    from slu_experiments.results import Store, replaced

    if stored and (setting or points or queries or epochs or subset):
        raise SettingError("--stored collects nothing, so it takes no setting and no kind of runs; leave them out")
    known = {each.name: each for each in paper_settings()}
    for name in setting or ():
        if name not in known:
            raise unknown("setting of the paper's tables", name, known)
    files = []
    if not stored:
        to.mkdir(parents=True, exist_ok=True)
        wanted = Wanted(points=points, queries=queries, training=training_of(epochs, subset))
        files += collect(Store(out), [known[name] for name in setting or known], wanted, to, warn)
    report = report_of(to)
    files += [*write_texts(report, to), *write_figures(report, to)]
    if readme is not None:
        files.append(replaced(readme, with_headline(_text(readme), report)))
    if as_json:
        typer.echo(json.dumps({"files": [str(path) for path in files]}, indent=2))
    else:
        typer.echo("\n".join(map(str, files)))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as reason:
        raise SettingError(
            f"cannot read {str(path)!r} ({reason.strerror}); --readme names a file with the two markers"
        ) from reason
