"""AUROC on every outside set, one panel per budget: the paper's Figure 4 and its counterpart at 10p."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slu.artifacts import write_picture
from slu_experiments.data import expand
from slu_experiments.figures.memory import PAPER, SHOWN
from slu_experiments.figures.request import Request
from slu_experiments.figures.style import TICK, auroc, canvas, curve, dress, guessing, legend_beside, line_of
from slu_experiments.results import Result
from slu_experiments.running import Run
from slu_experiments.settings import METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def jobs(request: Request) -> list[Run]:
    """The paper's methods at each of the setting's budgets."""
    return [
        run
        for budget in request.budgets or tuple(request.definition.budgets)
        for method in request.methods or PAPER
        for run in request.runs(method, budget)
    ]


def draw(results: Sequence[Result], request: Request, path: Path) -> None:
    """One panel per budget, one place per set, one line per method; the lines only guide the eye."""
    there = {name for result in results for name in result.metrics["judgements"]}
    sets = [name for name in expand(list(request.outside or request.definition.outside)) if name in there]
    budgets = sorted({result.config["budget"] for result in results}, key=lambda each: int(each.rstrip("p")))
    wanted = request.methods or SHOWN
    width = max(7.5, 0.5 * len(sets) + 3.5)
    figure = canvas(width, 3.1 * len(budgets) + 1.4, f"{request.definition.title}: AUROC on every outside set")
    panels = figure.subplots(len(budgets), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, budget in zip(panels, budgets, strict=True):
        _panel(axes, [result for result in results if result.config["budget"] == budget], sets, wanted)
        dress(axes, f"budget {budget}", "")
    panels[-1].set_xticks(
        range(len(sets)), [shortened(name, sets) for name in sets], rotation=40, ha="right", rotation_mode="anchor",
        fontsize=TICK,
    )  # fmt: skip
    legend_beside(figure, panels[0])
    write_picture(figure, path)


def shortened(name: str, sets: Sequence[str]) -> str:
    """Without what several neighbours begin with: "fmnist-rotated-30" as "rotated 30".

    >>> shortened("fmnist-rotated-30", ["mnist", "fmnist-rotated-30", "fmnist-rotated-45"]), shortened("mnist", [])
    ('rotated 30', 'mnist')
    """
    first, _, rest = name.partition("-")
    shared = sum(each.startswith(f"{first}-") for each in sets) > 1
    return rest.replace("-", " ") if rest and shared else name


def _panel(axes: Axes, results: Sequence[Result], sets: Sequence[str], wanted: Sequence[str]) -> None:
    guessing(axes)
    there = {result.config["method"] for result in results}
    methods = [name for name in METHODS if name in wanted and name in there]
    for place, method in enumerate(methods):
        values = [
            (float(at), value)
            for result in results
            if result.config["method"] == method
            for at, name in enumerate(sets)
            if (value := auroc(result, name)) is not None
        ]
        places, means, spreads = curve(values)
        # Beside each other, so that equal values can be distinguished.
        moved = [at + 0.4 * (place / max(1, len(methods) - 1) - 0.5) for at in places]
        line_of(axes, method, (moved, means, spreads), linewidth=0.9, alpha=0.9, markersize=6.5, capsize=1.5)
    axes.set_xlim(-0.5, len(sets) - 0.5)
