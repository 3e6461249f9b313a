"""AUROC against memory, the paper's first figure: what does a method reach with what it keeps?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slu.artifacts import FAINT, write_picture
from slu_experiments.figures.request import Request
from slu_experiments.figures.style import (
    auroc,
    canvas,
    colour_of,
    curve,
    dress,
    guessing,
    legend_beside,
    line_of,
    named,
)
from slu_experiments.results import Result
from slu_experiments.running import Run
from slu_experiments.settings import METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BUDGETS = ("1p", "2p", "3p", "5p", "10p")
PAPER = ("slu", "lla", "lla-d", "le", "le-h", "scod", "swag", "de")
"""The paper's methods."""

SHOWN = (*PAPER, "slu-default", "max-logit")
"""What a figure shows of the results it is given, unless it is asked for others."""

_ONE_SIZE = ("lla-d",)  # the same whatever the budget


def jobs(request: Request) -> list[Run]:
    """Every method at every budget."""
    budgets = request.budgets or BUDGETS
    runs = []
    for method in request.methods or PAPER:
        one = method in _ONE_SIZE or METHODS[method].logits
        for budget in budgets[:1] if one else budgets:
            runs += request.runs(method, budget)
    return runs


def draw(results: Sequence[Result], request: Request, path: Path) -> None:
    """One panel per family; one line per method, through what it keeps at each budget."""
    families = list(request.outside or request.definition.outside)
    figure = canvas(
        4.0 * len(families) + 2.2, 4.2, f"{request.definition.title}: AUROC against memory kept beside the network"
    )
    panels = figure.subplots(1, len(families), sharey=True, squeeze=False)[0]
    for axes, family in zip(panels, families, strict=True):
        _panel(axes, results, family, request.methods or SHOWN)
        dress(axes, named(family), "copies of the parameters", "AUROC" if axes is panels[0] else "")
    legend_beside(figure, panels[0])
    write_picture(figure, path)


def _panel(axes: Axes, results: Sequence[Result], family: str, methods: Sequence[str]) -> None:
    guessing(axes)
    for order, method in enumerate(name for name in METHODS if name in methods):
        values = [(result, auroc(result, family)) for result in results if result.config["method"] == method]
        points = [(round(r.metrics["memory"]["kept_copies"], 3), value) for r, value in values if value is not None]
        if not points:
            continue
        places, means, spreads = curve(points)
        if places[-1] == 0:  # what keeps nothing is a level to beat
            title = METHODS[method].title
            axes.axhline(means[0], linewidth=1.2, alpha=0.8, color=colour_of(method), linestyle="-.", label=title)
            continue
        # A little beside each other, so that equal values can be distinguished.
        moved = [place * 1.012 ** (order - len(methods) / 2) for place in places]
        line_of(axes, method, (moved, means, spreads), linewidth=1.6, markersize=7, capsize=2)
    axes.set_xscale("log")
    ticks = [tick for tick in (0.25, 0.5, 1, 2, 3, 5, 10, 20) if _between(axes, tick)]
    axes.set_xticks(ticks, [f"{tick:g}p" for tick in ticks], color=FAINT)
    axes.minorticks_off()


def _between(axes: Axes, tick: float) -> bool:
    low, high = axes.get_xlim()
    return low <= tick <= high
