"""`slu-paper figure`: the paper's figures, from stored results or with the runs they need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slu_experiments.cli.shared import (
    OUT,
    Data,
    Epochs,
    Json,
    Out,
    Points,
    Queries,
    Subset,
    Threads,
    at_work,
    place_of,
    settings,
    tell,
    training_of,
    warn,
)

if TYPE_CHECKING:
    from slu_experiments.results import Result
    from slu_experiments.running import Place

_ABOUT = "memory, sketch-size, preconditioning, synthetic, spectrum, ghosts or budget."


def _figures(incomplete: str) -> list[str]:
    from slu_experiments.figures import FIGURES

    return [name for name in FIGURES if name.startswith(incomplete)]


def figure(  # noqa: PLR0913 (a command's options)
    name: Annotated[str, typer.Argument(help=_ABOUT, metavar="NAME", autocompletion=_figures)],
    setting: Annotated[
        str | None, typer.Option(help="Of which setting; without it, one of the paper's.", autocompletion=settings)
    ] = None,
    seeds: Annotated[list[int] | None, typer.Option(help="Networks; without it, network 1.")] = None,
    budgets: Annotated[list[str] | None, typer.Option(help="For memory and budget: 1p 3p 10p …")] = None,
    methods: Annotated[list[str] | None, typer.Option(help="For memory and budget: slu le scod …")] = None,
    ood: Annotated[list[str] | None, typer.Option(help="Outside sets; without it, the paper's.")] = None,
    steps: Annotated[int | None, typer.Option(min=2, help="For spectrum and ghosts; at most, for the others.")] = None,
    starts: Annotated[int, typer.Option(min=1, help="For spectrum: random starts of Lanczos.")] = 5,
    parameters: Annotated[int, typer.Option(min=100, help="For synthetic: p.")] = 1_000_000,
    rank: Annotated[int, typer.Option(min=2, help="For synthetic: R, the true rank.")] = 100,
    stored: Annotated[bool, typer.Option("--stored", help="Draw from results that are there; run nothing.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Where to; .png, .svg or .pdf.")] = None,
    points: Points = None,
    queries: Queries = None,
    epochs: Epochs = None,
    subset: Subset = None,
    threads: Threads = None,
    data: Data = None,
    out: Out = OUT,
    as_json: Json = False,
) -> None:
    """Draw one of the paper's figures.

    - memory: AUROC against the memory that each method keeps.
    - sketch-size: AUROC of SLU by rank and sketch size.
    - preconditioning: the same by high-memory steps before the sketched ones.
    - synthetic: rank against sketch size on a matrix with known eigenvectors.
    - spectrum: how the curvature's eigenvalues decay, by length and start of Lanczos.
    - ghosts: which directions low-memory Lanczos finds again and again.
    - budget: AUROC on every outside set, by budget.

    The runs a figure needs are made first, each a folder below OUT/runs; those that are there are
    found, so the same command goes on after an interrupt, and `--stored` runs nothing at all. Quick
    tries: slu-paper figure ghosts --setting digits-mlp, slu-paper figure synthetic --parameters 20000 --rank 30.
    """
    from slu.artifacts import checked_ending
    from slu_experiments.figures import Request, find_figure

    chosen, place = find_figure(name), place_of(out, data)
    request = Request(
        setting or chosen.setting,
        seeds=tuple(seeds or (1,)),
        outside=tuple(ood or ()),
        budgets=tuple(budgets or ()),
        methods=tuple(methods or ()),
        missing=() if stored or name not in ("memory", "budget") else _missing(setting or chosen.setting, ood, place),
        points=points,
        queries=queries,
        training=training_of(epochs, subset),
        steps=steps,
        starts=starts,
        parameters=parameters,
        rank=rank,
    )
    path = picture or _usual_path(out, name, request.setting)
    checked_ending(path)
    with at_work(threads):
        results = chosen.stored(request, place.store) if stored else _made(chosen.jobs(request), place)
    chosen.draw(results, request, path)
    if as_json:
        typer.echo(json.dumps({"picture": str(path), "runs": [str(result.folder) for result in results]}, indent=2))
    else:
        typer.echo(f"{path}: {chosen.about}, from {len(results)} runs")


def _missing(setting: str, ood: list[str] | None, place: Place) -> tuple[str, ...]:
    from slu_experiments.running import available
    from slu_experiments.settings import find_setting

    _, missing = available(find_setting(setting), ood or [], place.data)
    for name, why in missing.items():
        warn(f"without {name}: {why}")
    return tuple(missing)


def _usual_path(out: Path, name: str, setting: str) -> Path:
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / (f"{name}.png" if name == "synthetic" else f"{setting}-{name}.png")


def _made(jobs: Any, place: Place) -> list[Result]:
    from slu_experiments.running import execute

    results = []
    for number, job in enumerate(jobs, 1):
        tell(f"run {number} of {len(jobs)}")
        results.append(execute(job, place)[0])
    return results
