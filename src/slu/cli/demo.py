"""`slu demo`: train, fit, score, and report the result."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slu.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from slu.cli.demo_steps import DemoSettings, Judged


def demo(
    out: Annotated[Path, typer.Option(help="Folder for demo.png and demo.json; made if missing.")] = Path("slu-demo"),
    rank: Annotated[
        int | None,
        typer.Option(min=1, help="Number of directions kept; by default SLU's budget sets it."),
    ] = None,
    sketch_size: Annotated[
        int | None, typer.Option(min=2, help="Numbers kept of each direction, above the rank; without it SLU decides.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the split, the network and SLU: one seed, one result.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training digits.")] = 60,
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
    import torch
    from rich.console import Console

    from slu.cli.demo_steps import DemoSettings

    _make_folder(out)
    settings = DemoSettings(rank=rank, sketch_size=sketch_size, seed=seed, epochs=epochs)
    before = torch.get_num_threads()
    # Matrices this small gain nothing from more threads, which on a busy machine wait for each other.
    torch.set_num_threads(1)
    try:
        results = _run(settings, out, Console(stderr=as_json, highlight=False))
    finally:
        torch.set_num_threads(before)
    if as_json:
        typer.echo(results)


def _run(settings: DemoSettings, out: Path, console: Console) -> str:
    """Do everything, telling it on the console; returns the JSON that was written."""
    import slu.cli.demo_steps as steps
    from slu.cli.demo_picture import draw

    def tell(step: str, text: str) -> None:
        console.print(f"  [bold]{step:<7}[/bold]{text}", soft_wrap=True)

    begun = time.perf_counter()
    console.print("[bold]slu demo[/bold]: what does a network not know?\n")
    with console.status("training a network"):
        trained = steps.prepare(settings)
    p = trained.parameters
    tell(
        "train",
        f"{len(trained.data.train.images):,} digits of {len(steps.CLASSES)} classes, {settings.epochs} epochs: "
        f"test accuracy {trained.accuracy:.1%}, p = {p:,} parameters",
    )
    with console.status("fitting SLU"):
        fitted = steps.fit(trained, settings)
    diagnostics, kept = fitted.diagnostics, steps.kept_numbers(fitted)
    rank = diagnostics.effective_rank
    tell(
        "fit",
        f"rank {fitted.settings.rank}, sketch size {fitted.settings.sketch.size}: {diagnostics.passes} pass over the "
        f"data, {diagnostics.seconds:.1f} s, effective rank {rank}",
    )
    tell(
        "keep",
        f"{kept:,} numbers = {kept / p:.1f} copies of p, scale and layers included "
        f"(the same {rank} directions unsketched: {rank} copies)",
    )
    with console.status("scoring"):
        judged = steps.judge(trained, fitted)
    inside, unseen, turned = (len(points.images) for points in judged.sets.values())
    tell(
        "score",
        f"{inside} test digits (inside) against {unseen} unseen {' and '.join(map(str, steps.HELD_OUT))}, and "
        f"{turned} test digits turned by 90 degrees\n",
    )
    console.print(_table(judged))
    console.print()
    flagged = ", ".join(f"{share:.1%} of {group}" for group, share in steps.flagged(fitted, judged).items())
    tell(
        "flag",
        f"at {steps.FALSE_ALARMS:.0%} false alarms, by the combined reading, calibrated on "
        f"{fitted.state.calibration.required('the demo').points} held-out digits: {flagged} digits",
    )
    picture, numbers = out / "demo.png", out / "demo.json"
    text = json.dumps(steps.summary(settings, trained, fitted, judged), indent=2)
    with console.status("drawing"):
        draw(judged, picture)
        numbers.write_text(text + "\n", encoding="utf-8")
    console.print(
        "\n* best of its column. AUROC is the chance that an outside image scores above a test image: 1 is perfect, "
        "0.5 is guessing, and less means that the score is fooled. FPR95 is the share of test images flagged along "
        "with 95 % of the outside: smaller is better."
    )
    seconds = time.perf_counter() - begun
    where = f"\n  picture  {picture}\n  numbers  {numbers}\n  time     {seconds:.0f} s"
    console.print(where, soft_wrap=True, markup=False)
    return text


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


def _table(judged: Judged) -> Table:
    """One row per score, three columns per outside set, and the worst AUROC of each score."""
    from rich import box
    from rich.table import Table

    board = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    board.add_column("\nscore", no_wrap=True)
    columns: list[dict[str, str]] = []
    for group in next(iter(judged.detections.values())):
        for position, (metric, better) in enumerate((("auroc", max), ("aupr", max), ("fpr95", min))):
            board.add_column(f"{'' if position else group}\n{metric.upper()} ", justify="right", no_wrap=True)
            values = {name: getattr(by_set[group], metric) for name, by_set in judged.detections.items()}
            columns.append(marked(values, better))
    board.add_column("worst\nAUROC ", justify="right", no_wrap=True)
    worst = {name: min(each.auroc for each in by_set.values()) for name, by_set in judged.detections.items()}
    columns.append(marked(worst, max))
    for name in judged.detections:
        board.add_row(name, *(column[name] for column in columns))
    return board


def marked(values: dict[str, float], better: Callable[[Iterable[float]], float]) -> dict[str, str]:
    """The values as text, the best as they are printed in bold and with a star."""
    shown = {name: round(value, 3) for name, value in values.items()}
    best = better(shown.values())
    return {name: f"[bold]{value:.3f}*[/bold]" if value == best else f"{value:.3f} " for name, value in shown.items()}
