"""`slu-paper score`: one method on one network, judged on outside sets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from slu.errors import SettingError
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
    changes_of,
    methods,
    place_of,
    print_whole,
    settings,
    training_of,
    warn,
)

if TYPE_CHECKING:
    from slu_experiments.results import Result
    from slu_experiments.settings import Setting


def score(  # noqa: PLR0913 (a command's options)
    dataset: Annotated[str | None, typer.Option(help="What the network was trained on: mnist, fmnist, …")] = None,
    model: Annotated[str | None, typer.Option(help="The network: mlp, lenet, resnet, van, swin.")] = None,
    setting: Annotated[
        str | None, typer.Option(help="Both in one word, instead: fmnist-lenet.", autocompletion=settings)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the network, and of the method's own draws.")] = 1,
    method: Annotated[
        str, typer.Option(help="slu, lla, lla-d, le, le-h, scod, swag, de, max-logit, …", autocompletion=methods)
    ] = "slu",
    budget: Annotated[str, typer.Option(help="Memory that the method may keep, in copies of the parameters.")] = "3p",
    ood: Annotated[
        list[str] | None,
        typer.Option(help="Outside sets or families of them: mnist fmnist-rotated; without it, the paper's."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="A setting of the method instead of the paper's: rank=20 sketch=hashed.")
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
    """Fit a method on a trained network and see whether it spots what the network was not trained for.

    The network is trained first if its weights are not there yet. The result is a folder below
    OUT/runs, named by a hash of everything that decides the numbers: settings, metrics with 95 %
    intervals, raw scores, time, memory and the version of the code. Asking again finds it.

    slu-paper score --dataset digits --model mlp --method slu --ood digits-held-out

    AUROC is the chance that an outside point scores above a test point: 1 is perfect, 0.5 guessing.
    """
    from slu_experiments.running import Run, available, execute

    chosen = _setting(dataset, model, setting)
    outside, missing = available(chosen, ood or [], None if data is None else str(data))
    for name, why in missing.items():
        warn(f"without {name}: {why}")
    run = Run(
        chosen.name,
        method,
        seed=seed,
        budget=budget,
        outside=tuple(outside),
        points=points,
        queries=queries,
        training=training_of(epochs, subset),
        changed=changes_of(option or []),
    )
    run.config()  # refuses wrong names before any folder is made
    with at_work(threads):
        result, made = execute(run, place_of(out, data))
    if as_json:
        shown = {"folder": str(result.folder), "made": made, "config": result.config, "metrics": result.metrics}
        typer.echo(json.dumps(shown, indent=2))
        return
    _tell(result, chosen, made)


def _setting(dataset: str | None, model: str | None, setting: str | None) -> Setting:
    from slu_experiments.settings import find_setting, setting_of

    if setting is not None and dataset is None and model is None:
        return find_setting(setting)
    if setting is None and dataset is not None and model is not None:
        return setting_of(dataset, model)
    raise SettingError("name a setting (--setting fmnist-lenet) or both of its parts (--dataset fmnist --model lenet)")


def _tell(result: Result, setting: Setting, made: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from slu_experiments.settings import find_method

    config, metrics = result.config, result.metrics
    console = Console(highlight=False)
    table = Table(
        title=f"{find_method(config['method']).title}, {setting.title}, {config['budget']}, network {config['seed']}",
        title_justify="left",
    )
    for heading in ("outside set", "points", "AUROC", "95 % interval", "AUPR", "FPR95"):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "outside set" else "right")
    for name, judged in metrics["judgements"].items():
        area = judged["auroc"]
        interval = f"{area['low']:.3f} to {area['high']:.3f}"
        rest = [f"{judged[each]['value']:.3f}" for each in ("aupr", "fpr95")]
        table.add_row(name, f"{metrics['outside'][name]:,}", f"{area['value']:.3f}", interval, *rest)
    print_whole(table)
    memory, seconds, accuracy = metrics["memory"], metrics["seconds"], metrics["network"]["accuracy"]
    lines = {
        "network": f"{memory['parameters']:,} parameters"
        + ("" if accuracy is None else f", test accuracy {accuracy:.3f}"),
        "kept": f"{memory['kept_copies']:.2f} copies of the parameters beside it",
        "time": f"{seconds['fit']:.1f} s to fit, {1000 * seconds['score_each']:.2f} ms per score",
        "result": f"{result.folder}{'' if made else ', found'}",
    }
    for name, text in lines.items():
        console.print(f"  {name:<9}{text}", markup=False, soft_wrap=True)
