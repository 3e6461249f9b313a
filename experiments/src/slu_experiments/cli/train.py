"""`slu-paper train`: one of the paper's networks by the paper's recipe, from a seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slu_experiments.cli.shared import OUT, Data, Epochs, Json, Subset, Threads, at_work

if TYPE_CHECKING:
    from slu_experiments.settings import Setting


def train(  # noqa: PLR0913 (a command's options)
    dataset: Annotated[str, typer.Option(help="What it learns: mnist, fmnist, cifar10, celeba, imagenet, digits.")],
    model: Annotated[str, typer.Option(help="The network: mlp, lenet, resnet, van, swin; for digits: mlp.")],
    seed: Annotated[int, typer.Option(help="Of the first weights and of the training: one seed, one network.")] = 1,
    epochs: Epochs = None,
    subset: Subset = None,
    threads: Threads = None,
    data: Data = None,
    out: Annotated[Path, typer.Option(help="The weights go to the folder weights/ in here.")] = OUT,
    as_json: Json = False,
) -> None:
    """Train a network by the paper's recipe and keep its weights.

    The weights are a safetensors file with the recipe, the seed and the accuracy on the test set in
    its header; `slu-paper score` finds it there. Weights that are there already are not trained again.

    A training may be stopped at any time: it is written down every minute and on Ctrl-C, and the
    same command goes on from there and ends in the very same weights. Try it in a second:

    slu-paper train --dataset digits --model mlp

    On a small machine: `--epochs 5 --subset 5000` shows whether everything works; such weights get
    a file of their own.
    """
    from slu_experiments.settings import setting_of
    from slu_experiments.training import checkpoint_path, trained, weights_path

    setting = setting_of(dataset, model)
    left = checkpoint_path(weights_path(setting, seed, out, epochs=epochs, subset=subset))

    def how_to_go_on() -> str:
        return f"the training is written down in {left}; the same command goes on from there" if left.exists() else ""

    with at_work(threads, how_to_go_on):
        _, facts = trained(setting, seed, out, root=data, epochs=epochs, subset=subset)
    if as_json:
        typer.echo(json.dumps(facts | {"paper_accuracy": _paper(setting)}, indent=2))
        return
    _tell(setting, facts)


def _tell(setting: Setting, facts: dict[str, Any]) -> None:
    from rich.console import Console

    recipe, paper = facts["recipe"], _paper(setting)
    beside = "" if paper is None else f" (in the paper {paper:.3f})"
    if facts["accuracy"] is None:
        quality = f"loss {facts['loss']:.4f}"
    else:
        quality = f"accuracy {facts['accuracy']:.4f}{beside}"
    before = ", trained before" if facts["found"] else ""
    lines = {
        "network": f"{setting.title}, seed {facts['seed']}, {facts['parameters']:,} parameters",
        "training": f"{recipe['epochs']} epochs on {facts['points']:,} points in {facts['seconds']:.0f} s{before}",
        "test": f"{quality} on {facts['test_points']:,} points",
        "weights": facts["path"],
    }
    console = Console(highlight=False, soft_wrap=True)
    for name, text in lines.items():
        console.print(f"  {name:<10}{text}", markup=False)


def _paper(setting: Setting) -> float | None:
    return None if setting.accuracy is None else setting.accuracy.mean
