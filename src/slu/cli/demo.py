"""`slu demo`: train, fit, score, and show what came out."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slu.cli.demo_report import table, tell_fit, tell_flags, tell_reading, tell_sets, tell_training
from slu.errors import SettingError
from slu.experiments.demo_settings import DemoSettings

if TYPE_CHECKING:
    from rich.console import Console

_DEFAULTS = DemoSettings()


def demo(
    out: Annotated[Path, typer.Option(help="Folder for demo.png and demo.json; made if missing.")] = Path("slu-demo"),
    rank: Annotated[
        int | None,
        typer.Option(min=1, help="Directions kept, of those that the data pin down most; without it SLU decides."),
    ] = _DEFAULTS.rank,
    sketch_size: Annotated[
        int | None, typer.Option(min=2, help="Numbers kept of each direction, above the rank; without it SLU decides.")
    ] = _DEFAULTS.sketch_size,
    seed: Annotated[
        int, typer.Option(help="Of the split, the network and SLU: one seed, one result.")
    ] = _DEFAULTS.seed,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training digits.")] = _DEFAULTS.epochs,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON; the rest goes to stderr.")
    ] = False,
) -> None:
    """Train a small network on digits without 8 and 9, then see whether SLU spots them.

    The images are scikit-learn's 8 x 8 digits: nothing is downloaded. Test digits are scored
    against the two classes the network never saw and against test digits turned by 90 degrees,
    by every reading of SLU and by two numbers that come with the network's output. The folder
    gets a picture (demo.png) and all numbers (demo.json).

    Needs the extra packages of: pip install 'slu[demo]'
    """
    from rich.console import Console

    _make_folder(out)
    settings = DemoSettings(rank=rank, sketch_size=sketch_size, seed=seed, epochs=epochs)
    with _one_thread():
        results = _run(settings, out, Console(stderr=as_json, highlight=False))
    if as_json:
        typer.echo(results)


def _run(settings: DemoSettings, out: Path, console: Console) -> str:
    """Do everything, telling it on the console; returns the JSON that was written."""
    from slu.experiments import demo as steps
    from slu.experiments.demo_picture import draw

    begun = time.perf_counter()
    console.print("[bold]slu demo[/bold]: what does a network not know?\n")
    with console.status("training a network"):
        trained = steps.prepare(settings)
    tell_training(console, trained, settings)
    with console.status("fitting SLU"):
        fitted = steps.fit(trained, settings)
    tell_fit(console, trained, fitted)
    with console.status("scoring"):
        judged = steps.judge(trained, fitted)
    tell_sets(console, judged)
    console.print(table(judged))
    console.print()
    tell_flags(console, fitted, judged)

    picture, numbers = out / "demo.png", out / "demo.json"
    text = json.dumps(steps.summary(settings, trained, fitted, judged), indent=2)
    with console.status("drawing"):
        draw(judged, picture)
        numbers.write_text(text + "\n", encoding="utf-8")
    tell_reading(console, picture, numbers, time.perf_counter() - begun)
    return text


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: matrices this small gain nothing from more, and on a busy machine
    threads that wait for each other make the demo several times slower."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _make_folder(out: Path) -> None:
    # Before the work, so that a folder that cannot be written costs no one a minute.
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"cannot make the folder {str(out)!r} ({error.strerror}); name another with --out"
        ) from error
    if not os.access(out, os.W_OK):
        raise SettingError(f"the folder {str(out)!r} cannot be written to; name another with --out")
