"""What all figures share: one look, one colour per method with shades of it, and numbers out of score runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from slu.artifacts import FAINT, INK
from slu.comparing import METHODS
from slu_experiments.data import expand
from slu_experiments.results import Result
from slu_experiments.settings import METHODS as CHOICES
from slu_experiments.settings import find_method

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE, LABEL, TICK = 12.5, 11, 9.5  # points
_GUESSING = "guessing"


def canvas(width: float, height: float, title: str = "") -> Figure:
    """An empty figure, inches, the parts of which do not overlap."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=TITLE + 1, fontweight="bold", color=INK, x=0.01, ha="left")
    return figure


def dress(axes: Axes, title: str, across: str, up: str = "AUROC") -> None:
    """Titles, quiet lines and letters that can be read."""
    axes.set_title(title, fontsize=TITLE, fontweight="bold", color=INK, loc="left")
    axes.set_xlabel(across, fontsize=LABEL, color=INK)
    axes.set_ylabel(up, fontsize=LABEL, color=INK)
    axes.tick_params(labelsize=TICK, colors=INK, length=3)
    axes.grid(True, color="#E4E4E4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)


def guessing(axes: Axes) -> None:
    """A line where a score that guesses lies."""
    axes.axhline(0.5, color=FAINT, linewidth=1, linestyle=(0, (3, 3)), zorder=1, label=_GUESSING)


def key_of(method: str) -> str:
    """The name under which a method's colour stands in the shared table."""
    choice = find_method(method)
    return "LocalEnsemble hessian" if method.startswith("le-h") else choice.kind


def colour_of(method: str) -> str:
    """A method's colour, the same in every picture."""
    return METHODS[key_of(method)].colour


def marker_of(method: str) -> str:
    """A method's marker."""
    return METHODS[key_of(method)].marker


def lines_of(method: str) -> str:
    """Whole for a method as it should be, dotted as the authors ran it, dashed for another reading of it."""
    choice = find_method(method)
    if choice.as_run:
        return ":"
    return "-" if choice.paper == method or choice.logits else "--"


def face_of(method: str) -> str:
    """Markers are filled for a row of the paper's table, and hollow for our own readings and ways."""
    choice = find_method(method)
    return colour_of(method) if choice.paper == method or choice.logits else "white"


def edge_of(method: str) -> str:
    """White around filled markers, so that neighbours can be distinguished."""
    return "white" if face_of(method) != "white" else colour_of(method)


def line_of(
    axes: Axes, method: str, points: tuple[Sequence[float], Sequence[float], Sequence[float]], **look: Any
) -> None:
    """A method's line through (places, means, spreads), in its own colour, marker and name."""
    places, means, spreads = points
    axes.errorbar(
        places, means, yerr=spreads if any(spreads) else None, color=colour_of(method), marker=marker_of(method),
        linestyle=lines_of(method), markeredgewidth=0.8, markerfacecolor=face_of(method),
        markeredgecolor=edge_of(method), label=CHOICES[method].title, **look,
    )  # fmt: skip


def shades(colour: str, count: int) -> list[tuple[float, float, float]]:
    """From a light shade of a colour to a dark one."""
    from matplotlib.colors import to_rgb

    full = np.array(to_rgb(colour))
    weights = np.linspace(-0.6, 0.45, count) if count > 1 else [0.0]
    colours = [full + (1 - full) * -w if w < 0 else full * (1 - w) for w in weights]
    return [(float(r), float(g), float(b)) for r, g, b in colours]


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation; 0 for one value."""
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def legend_beside(figure: Figure, axes: Axes, *, columns: int = 1) -> None:
    """One legend for all panels, on the right of them."""
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda place: _rank(labels[place]))
    handles, labels = [handles[place] for place in order], [labels[place] for place in order]
    figure.legend(
        handles, labels, loc="outside right upper", fontsize=TICK, frameon=False, ncols=columns, labelcolor=INK
    )


def _rank(label: str) -> int:
    """The place of a method in the table of methods; what is no method stays before them, guessing comes last."""
    titles = [*(choice.title for choice in CHOICES.values()), _GUESSING]
    return titles.index(label) if label in titles else -1


def auroc(result: Result, family: str) -> float | None:
    """The mean over a family's sets; None where none of them was scored."""
    judged = result.metrics["judgements"]
    values = [judged[name]["auroc"]["value"] for name in expand([family]) if name in judged]
    return mean(values) if values else None


def curve(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float], list[float]]:
    """Places, means and standard deviations over networks, from (place, value) pairs; in rising order."""
    by_place: dict[float, list[float]] = {}
    for place, value in points:
        by_place.setdefault(place, []).append(value)
    places = sorted(by_place)
    middles = [middle(by_place[place]) for place in places]
    return places, [each for each, _ in middles], [spread for _, spread in middles]


def named(family: str) -> str:
    """A family as it is written over a panel."""
    count = len(expand([family]))
    return f"{family} (mean of {count})" if count > 1 else family
