"""What `slu demo` says on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from slu.core import SluScore
    from slu.experiments.demo import Judged, Trained
    from slu.experiments.demo_settings import DemoSettings


def _tell(console: Console, step: str, text: str) -> None:
    console.print(f"  [bold]{step:<7}[/bold]{text}", soft_wrap=True)


def tell_training(console: Console, trained: Trained, settings: DemoSettings) -> None:
    """What was learned from what, and how well."""
    _tell(
        console,
        "train",
        f"{len(trained.data.train_images):,} digits of {len(trained.data.classes)} classes, {settings.epochs} epochs: "
        f"test accuracy {trained.accuracy:.1%}, p = {trained.parameters:,} parameters",
    )


def tell_fit(console: Console, trained: Trained, fitted: SluScore) -> None:
    """What the fit took and found, and what of it is kept."""
    from slu.experiments.demo import kept_numbers

    method, found, kept = fitted.method, fitted.diagnostics, kept_numbers(fitted)
    _tell(
        console,
        "fit",
        f"rank {method.rank}, sketch size {method.sketch.size}: {found.passes} passes (one for the scale), "
        f"{found.seconds:.1f} s, effective rank {found.effective_rank}",
    )
    _tell(
        console,
        "keep",
        f"{kept:,} numbers = {kept / trained.parameters:.1f} copies of p, one of them the scale "
        f"(the same {found.effective_rank} directions unsketched: {found.effective_rank + 1} copies)",
    )


def tell_sets(console: Console, judged: Judged) -> None:
    """What is scored against what."""
    from slu.experiments.demo import HELD_OUT, INSIDE, TURNED, UNSEEN

    sizes = {name: len(points.images) for name, points in judged.sets.items()}
    _tell(
        console,
        "score",
        f"{sizes[INSIDE]} test digits (inside) against {sizes[UNSEEN]} unseen {' and '.join(map(str, HELD_OUT))}, and "
        f"{sizes[TURNED]} test digits turned by 90 degrees\n",
    )


def tell_flags(console: Console, fitted: SluScore, judged: Judged) -> None:
    """How often the combined reading says that an image is not to be trusted."""
    from slu.experiments.demo import FALSE_ALARMS, INSIDE, TURNED, UNSEEN, flagged

    shares = flagged(fitted, judged)
    points = fitted.reference.needed("the demo").points
    _tell(
        console,
        "flag",
        f"at {FALSE_ALARMS:.0%} false alarms, by the combined reading, calibrated on {points} held-out digits: "
        f"{shares[INSIDE]:.1%} of test, {shares[UNSEEN]:.1%} of unseen, {shares[TURNED]:.1%} of turned digits",
    )


def table(judged: Judged) -> Table:
    """One row a score, three columns an outside set, and the worst AUROC of each score."""
    from rich import box
    from rich.table import Table

    board = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    board.add_column("\nscore", no_wrap=True)
    columns: list[dict[str, str]] = []
    for group in next(iter(judged.detections.values())):
        for position, (metric, better) in enumerate((("auroc", max), ("aupr", max), ("fpr95", min))):
            board.add_column(f"{'' if position else group}\n{metric.upper()} ", justify="right", no_wrap=True)
            values = {name: getattr(found[group], metric) for name, found in judged.detections.items()}
            columns.append(marked(values, better))
    board.add_column("worst\nAUROC ", justify="right", no_wrap=True)
    worst = {name: min(each.auroc for each in found.values()) for name, found in judged.detections.items()}
    columns.append(marked(worst, max))
    for name in judged.detections:
        board.add_row(name, *(column[name] for column in columns))
    return board


def marked(values: dict[str, float], better: Callable[[Iterable[float]], float]) -> dict[str, str]:
    """The values as text, the best as they are printed in bold and with a star."""
    shown = {name: round(value, 3) for name, value in values.items()}
    best = better(shown.values())
    return {name: f"[bold]{value:.3f}*[/bold]" if value == best else f"{value:.3f} " for name, value in shown.items()}


def tell_reading(console: Console, picture: Path, numbers: Path, seconds: float) -> None:
    """How to read the table, and where the files are."""
    console.print(
        "\n* best of its column. AUROC is the chance that an outside image scores above a test image: 1 is perfect, "
        "0.5 is guessing, and less means that the score is fooled. FPR95 is the share of test images flagged along "
        "with 95 % of the outside: smaller is better."
    )
    console.print(
        f"\n  picture  {picture}\n  numbers  {numbers}\n  time     {seconds:.0f} s", soft_wrap=True, markup=False
    )
