"""AUROC by sketch size, and by preconditioning: SLU's own settings, against vectors that are kept whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slu.artifacts import write_picture
from slu_experiments.data import expand
from slu_experiments.figures.request import Request
from slu_experiments.figures.style import (
    auroc,
    canvas,
    colour_of,
    curve,
    dress,
    guessing,
    legend_beside,
    marker_of,
    named,
    shades,
)
from slu_experiments.results import Result
from slu_experiments.running import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FRACTIONS = (1 / 16, 1 / 4, 1 / 2, 1, 2)
"""Ranks, in terms of the setting's at 3p."""

SIZES = (1 / 4, 1, 4)
"""Sketch sizes, in the same terms."""

HELD = (0, 2, 5, 10)
"""High-memory steps before the sketched ones."""

WHOLE = (1, 2, 3, 5, 10)
"""Ranks of local ensembles; their vectors are kept whole."""

_PAPER = {
    ("sketch-size", "fmnist-lenet"): ("mnist",),
    ("sketch-size", "cifar10-resnet"): ("cifar10-defocus_blur-5",),
    ("sketch-size", "celeba-van"): ("food101",),
    ("preconditioning", "fmnist-lenet"): ("fmnist-rotated-30",),
    ("preconditioning", "cifar10-resnet"): ("svhn", "cifar10-pixelate-5"),
}


def outside_of(figure: str, request: Request) -> tuple[str, ...]:
    """The sets asked for, the paper's, or the first of the setting's."""
    first = tuple(expand(list(request.definition.outside))[:1])
    return request.outside or _PAPER.get((figure, request.setting), first)


def sketch_size_jobs(request: Request) -> list[Run]:
    """SLU for every rank and size, and local ensembles."""
    numbers = request.definition.numbers("3p")
    changes = [
        {"rank": rank, "sketch_size": size}
        for size in (max(2, int(each * numbers.sketch_size)) for each in SIZES)
        for rank in _ranks(numbers.rank, request.steps)
        if 2 * rank <= size <= request.definition.parameters
    ]
    return _runs("sketch-size", request, changes)


def preconditioning_jobs(request: Request) -> list[Run]:
    """SLU for every rank and number of high-memory steps, and local ensembles."""
    numbers = request.definition.numbers("3p")
    changes = [
        {"rank": held + rank, "sketch_size": numbers.sketch_size, "precondition": held}
        for held in HELD
        for rank in _ranks(numbers.rank, request.steps)
        if held + rank < numbers.sketch_size
    ]
    return _runs("preconditioning", request, changes)


def draw_sketch_size(results: Sequence[Result], request: Request, path: Path) -> None:
    """One line per sketch size, through its ranks."""
    title = f"{request.definition.title}: sketch size"

    def line(settings: Mapping[str, Any]) -> int | None:
        return None if "precondition" in settings else settings["sketch_size"]

    def place(settings: Mapping[str, Any], parameters: int) -> float:
        return settings["rank"] * settings["sketch_size"] / parameters

    lines = _Lines("sketch-size", line, place, lambda size: f"SLU, s = {size:,}")
    _draw(results, request, path, title, "copies of the parameters kept, s k / p", lines)


def draw_preconditioning(results: Sequence[Result], request: Request, path: Path) -> None:
    """One line per number of high-memory steps; they count as copies, as the paper counts them."""
    title = f"{request.definition.title}: preconditioning"

    def line(settings: Mapping[str, Any]) -> int | None:
        return settings.get("precondition")

    def place(settings: Mapping[str, Any], parameters: int) -> float:
        held = settings["precondition"]
        return held + (settings["rank"] - held) * settings["sketch_size"] / parameters

    lines = _Lines("preconditioning", line, place, lambda held: f"SLU, {held} steps held" if held else "SLU, none held")
    _draw(results, request, path, title, "copies of the parameters while fitting, k₀ + s k / p", lines)


class _Lines:
    """How runs of SLU are put on lines, where on them, and what the lines are called."""

    def __init__(
        self,
        figure: str,
        line: Callable[[Mapping[str, Any]], int | None],
        place: Callable[[Mapping[str, Any], int], float],
        name: Callable[[int], str],
    ) -> None:
        self.figure, self.line, self.place, self.name = figure, line, place, name


def _ranks(usual: int, most: int | None) -> list[int]:
    ranks = sorted({max(2, round(each * usual)) for each in FRACTIONS})
    return [rank for rank in ranks if most is None or rank <= most] or [most or 2]


def _runs(figure: str, request: Request, changes: Sequence[Mapping[str, Any]]) -> list[Run]:
    shared: list[Any] = [
        request.common(seed) | {"outside": outside_of(figure, request), "queries": request.queries}
        for seed in request.seeds
    ]
    sketched = [Run(**each, method="slu", changed=change) for change in changes for each in shared]
    return sketched + [Run(**each, method="le", changed={"rank": rank}) for rank in WHOLE for each in shared]


def _draw(results: Sequence[Result], request: Request, path: Path, title: str, across: str, lines: _Lines) -> None:
    families = outside_of(lines.figure, request)
    figure = canvas(4.6 * len(families) + 2.4, 4.2, title)
    panels = figure.subplots(1, len(families), squeeze=False)[0]
    for axes, family in zip(panels, families, strict=True):
        _panel(axes, [result for result in results if result.config["changed"]], family, lines)
        dress(axes, named(family), across)
    legend_beside(figure, panels[0])
    write_picture(figure, path)


def _panel(axes: Axes, results: Sequence[Result], family: str, lines: _Lines) -> None:
    sketched: dict[int, list[tuple[float, float]]] = {}
    whole: list[tuple[float, float]] = []
    for result in results:
        value, changed = auroc(result, family), result.config["changed"]
        if value is None:
            continue
        if result.config["method"] == "le":
            whole.append((float(changed["rank"]), value))
        elif result.config["method"] == "slu" and (line := lines.line(changed)) is not None:
            place = lines.place(changed, result.metrics["memory"]["parameters"])
            sketched.setdefault(line, []).append((round(place, 6), value))
    for colour, line in zip(shades(colour_of("slu"), len(sketched)), sorted(sketched), strict=True):
        _line(axes, sketched[line], lines.name(line), colour, marker_of("slu"))
    if whole:
        _line(axes, whole, "LE, vectors kept whole", colour_of("le"), marker_of("le"))
    low, high = axes.get_ylim()
    if low < 0.55:
        guessing(axes)
        axes.set_ylim(min(low, 0.48), high)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda place, _: f"{place:g}")


def _line(axes: Axes, points: Sequence[tuple[float, float]], name: str, colour: Any, marker: str) -> None:
    places, means, spreads = curve(points)
    axes.errorbar(
        places, means, yerr=spreads if any(spreads) else None, color=colour, marker=marker, markersize=6, linewidth=1.8,
        capsize=2, markeredgecolor="white", markeredgewidth=0.6, label=name,
    )  # fmt: skip
