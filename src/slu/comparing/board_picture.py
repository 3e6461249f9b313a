"""A board as a picture: a dot and its interval for every row and outside set, memory and time beside them."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slu.artifacts.pictures import BAND, COLOURS, FAINT, INK, checked_ending, striped, write_picture
from slu.comparing.board_table import number
from slu.comparing.bootstrap import LEVEL
from slu.comparing.metrics import METRICS
from slu.comparing.registry import METHODS
from slu.comparing.results import BoardRow, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = ("o", "s", "D", "^", "v", "P")
_ROW, _PANEL, _INFO, _ACROSS = 0.34, 2.2, 2.1, 5  # inches; panels beside each other
_GAP = 0.12  # inches between panels
_LABEL_SIZE, _NAME_SIZE = 10, 10.5  # points, of rows' labels and of outside sets' names
_LINE = 0.18  # inches of a further line of a name


def draw(board: Results, path: str | Path, metric: str) -> None:
    """Write the picture, atomically; the path's ending says in which format."""
    checked_ending(path)
    write_picture(_figure(board, metric), path)


def _figure(board: Results, metric: str) -> Figure:
    from matplotlib.figure import Figure

    names = list(board.outside)
    lines = math.ceil(len(names) / _ACROSS)
    across = math.ceil(len(names) / lines)  # as even as can be
    label = 0.3 + max(_inches(row.label, _LABEL_SIZE) for row in board.rows)
    width = max(6.5, label + across * _PANEL + _INFO + 0.2)
    panel = (width - label - _INFO - 0.2) / across
    titles = {name: _wrapped(name, panel - _GAP) for name in names}
    further = max(title.count("\n") for title in titles.values()) * _LINE
    top, below, between = 0.85 + further, 0.9, 0.75 + further
    block = _ROW * len(board.rows)
    height = top + lines * block + (lines - 1) * between + below
    figure = Figure(figsize=(width, height), facecolor="white")
    _write_titles(figure, metric, height)
    limits = _limits(board, metric)
    for line in range(lines):
        bottom = height - top - (line + 1) * block - line * between
        shown = names[line * across : (line + 1) * across]

        def place(left: float, wide: float, bottom: float = bottom) -> Axes:
            axes = figure.add_axes((left / width, bottom / height, wide / width, block / height), xticks=[], yticks=[])
            return striped(axes, len(board.rows))

        _write_labels(place(0, label), board)
        for column, name in enumerate(shown):
            axes = place(label + column * panel, panel - _GAP)
            axes.text(
                0, 1.0 + 0.04 / block, titles[name], transform=axes.transAxes, fontsize=_NAME_SIZE, fontweight="bold",
                color=INK, va="bottom", parse_math=False,
            )  # fmt: skip
            _draw_panel(axes, board, metric, name, limits)
        _write_costs(place(label + len(shown) * panel, _INFO), board)
    return figure


def _inches(text: str, size: float) -> float:
    """How wide a bold text is."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    return text_to_path.get_text_width_height_descent(text, FontProperties(weight="bold", size=size), False)[0] / 72


def _wrapped(name: str, inches: float) -> str:
    """The name in as many lines as it takes, broken between words if that can be."""
    for letters in range(len(name), 1, -1):
        lines = textwrap.wrap(name, letters)
        if all(_inches(line, _NAME_SIZE) <= inches for line in lines):
            return "\n".join(lines)
    return name


def _write_titles(figure: Figure, metric: str, height: float) -> None:
    shown = METRICS[metric]
    better = "right" if shown.larger_is_better else "left"
    figure.text(
        0.012, 1 - 0.3 / height, f"{shown.title}: points outside against points inside", fontsize=13.5,
        fontweight="bold", color=INK, va="center",
    )  # fmt: skip
    notes = (
        f"Further {better} is better. Lines: {100 * LEVEL:g} % bootstrap intervals.",
        "Bold: the best, and what cannot be told from it. Kept: memory for queries, in copies of the parameters (p).",
    )
    figure.text(0.012, 0.12 / height, "\n".join(notes), fontsize=8, color=FAINT, va="bottom", linespacing=1.5)


def _limits(board: Results, metric: str) -> tuple[float, float]:
    """One scale for every panel, from the data; guessing is included where it is near."""
    estimates = [getattr(each, metric) for row in board.rows for each in row.judgements.values()]
    low = min((each.low for each in estimates), default=0.0)
    high = max((each.high for each in estimates), default=1.0)
    if metric == "auroc" and 0.5 < low < 0.6:
        low = 0.5
    margin = max(0.02, 0.04 * (high - low))
    return max(-0.02, low - margin), min(1.02, high + margin)


def _draw_panel(axes: Axes, board: Results, metric: str, name: str, limits: tuple[float, float]) -> None:
    low, high = limits
    # The right quarter is for the values as text.
    axes.set_xlim(low, high + 0.3 * (high - low))
    for tick in (ticks := _ticks(low, high)):
        axes.axvline(tick, color="white", linewidth=1.2, zorder=1)
    if metric == "auroc" and low <= 0.5 <= high:
        axes.axvline(0.5, color=FAINT, linewidth=1, linestyle=(0, (3, 3)), zorder=1)
        axes.annotate(
            "guessing", (0.5, 0), xycoords=axes.get_xaxis_transform(), xytext=(0, -20), textcoords="offset points",
            ha="center", fontsize=7.5, color=FAINT, style="italic", annotation_clip=False,
        )  # fmt: skip
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.tick_params(axis="x", labelsize=8, colors=FAINT)
    for position, row in enumerate(board.rows):
        if name not in row.judgements:
            # On the row's own background, or the line of guessing would cross it.
            ground = {"facecolor": "white" if position % 2 else BAND, "edgecolor": "none", "pad": 0}
            axes.text(low, position, " failed", va="center", fontsize=8.5, color=FAINT, style="italic", bbox=ground)
            continue
        estimate = getattr(row.judgements[name], metric)
        colour, marker = _style(board, row)
        axes.plot(
            [estimate.low, estimate.high], [position] * 2, color=colour, linewidth=3, alpha=0.5, solid_capstyle="round",
            zorder=2,
        )  # fmt: skip
        axes.plot(
            [estimate.value], [position], marker=marker, color=colour, markersize=5.5, markeredgecolor="white",
            markeredgewidth=0.6, zorder=3,
        )  # fmt: skip
        leads = row.label in board.leaders[metric].get(name, ())
        weight, ink = ("bold", INK) if leads else ("normal", FAINT)
        _write(axes, 0.99, position, f"{estimate.value:.3f}", fontsize=8.5, fontweight=weight, color=ink)


def _ticks(low: float, high: float) -> list[float]:
    """Three or four round numbers."""
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.25, 0.5) if (high - low) / step <= 4.2 or step == 0.5)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 10) for place in range(first, last + 1)]


def _style(board: Results, row: BoardRow) -> tuple[str, str]:
    """One colour per method, those of the registry the same everywhere; one marker per reading of it.

    Rows have labels, so a colour may occur twice; methods that share one begin with different markers.
    """
    turn = [each.label for each in board.rows if each.method == row.method].index(row.label)
    if row.method in METHODS:
        return METHODS[row.method].colour, _MARKERS[turn % len(_MARKERS)]
    place = list(dict.fromkeys(each.method for each in board.rows)).index(row.method)
    turn += place // len(COLOURS)
    return COLOURS[place % len(COLOURS)], _MARKERS[turn % len(_MARKERS)]


def _write_labels(axes: Axes, board: Results) -> None:
    for position, row in enumerate(board.rows):
        colour = _style(board, row)[0] if row.failure is None else FAINT
        _write(axes, 0.96, position, row.label, fontsize=_LABEL_SIZE, color=colour, fontweight="bold", parse_math=False)


def _write_costs(axes: Axes, board: Results) -> None:
    for right, title in ((0.26, "kept"), (0.58, "fit, s"), (0.97, "query, ms")):
        axes.text(right, 1.02, title, transform=axes.transAxes, ha="right", fontsize=9, color=FAINT)
    for position, row in enumerate(board.rows):
        copies = None if row.cost is None else row.copies(row.cost.artefact)
        _write(axes, 0.26, position, "-" if copies is None else f"{number(copies)}p", fontsize=8.5, color=INK)
        _write(axes, 0.58, position, number(row.seconds), fontsize=8.5, color=INK)
        _write(axes, 0.97, position, number(row.milliseconds), fontsize=8.5, color=INK)


def _write(axes: Axes, right: float, position: int, text: str, **style: Any) -> None:
    """A text in a row, its right end at a share of the width."""
    axes.text(right, position, text, transform=axes.get_yaxis_transform(), ha="right", va="center", **style)
