"""The demo's picture: SLU's score beside a baseline, and the images at both ends of it.

Drawn with matplotlib's objects on the Agg canvas: no window, no global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from slu.cli.demo_steps import FALSE_ALARMS, HELD_OUT, INSIDE, TURNED, UNSEEN, Judged
from slu.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec

_NAMES = " and ".join(map(str, HELD_OUT))
_LABELS = {
    INSIDE: "digits it knows\n(test images)",
    UNSEEN: f"digits it never\nsaw ({_NAMES})",
    TURNED: "digits turned\nby 90°",
}
_SHOWN = 14
_SCORE = "SLU combined"
# Told apart by colour-blind eyes and in grey; the first is the inside set's.
_COLOURS = ("#0072B2", "#D55E00", "#8E4FA8")
_INK, _FAINT = "#222222", "#777777"
_BINS = 45


@dataclass(frozen=True)
class Panel:
    """One score over several sets of points.

    Attributes:
        title: What the score is.
        axis: The label of its axis.
        scores: (n,) for each set, the inside first.
    """

    title: str
    axis: str
    scores: Sequence[np.ndarray]


@dataclass(frozen=True)
class Thumbnail:
    """A small grey image with its caption, framed in the colour of its set (a position)."""

    image: np.ndarray
    caption: str
    group: int


@dataclass(frozen=True)
class Strip:
    """A row of thumbnails under a heading."""

    heading: str
    thumbnails: Sequence[Thumbnail]


def draw(judged: Judged, path: Path) -> None:
    """Write the picture.

    SLU's default reading stands beside the largest logit: the one measures how far the prediction
    could change and how much of that the data leave open, the other is what the network itself believes.
    """
    draw_scores(
        path,
        title=f"A network that never saw {_NAMES}: which images should one not trust it on?",
        sets=[_LABELS[group] for group in judged.sets],
        panels=[
            _panel(judged, _SCORE, "How unsure SLU is", "SLU's score, combined   (larger: less sure →)"),
            _panel(
                judged,
                "max logit",
                "How unsure the network believes it is",
                "minus the largest logit   (larger: less sure →)",
            ),
        ],
        strips=_strips(judged),
    )


def _panel(judged: Judged, score: str, title: str, axis: str) -> Panel:
    return Panel(title, axis, [values.numpy() for values in judged.scores[score].values()])


def _strips(judged: Judged) -> list[Strip]:
    values = torch.cat(list(judged.scores[_SCORE].values()))
    thumbnails = [
        Thumbnail(image[0].numpy(), _caption(group, int(digit)), position)
        for position, (group, points) in enumerate(judged.sets.items())
        for image, digit in zip(points.images, points.digits, strict=True)
    ]
    order = values.argsort().tolist()
    return [
        Strip("Of all these images, SLU is surest of …", [thumbnails[i] for i in order[:_SHOWN]]),
        Strip("… and least sure of", [thumbnails[i] for i in order[: -_SHOWN - 1 : -1]]),
    ]


def _caption(group: str, digit: int) -> str:
    return {INSIDE: f"{digit}", UNSEEN: f"{digit}, unseen", TURNED: f"{digit}, turned"}[group]


def draw_scores(
    path: Path, *, title: str, sets: Sequence[str], panels: Sequence[Panel], strips: Sequence[Strip]
) -> None:
    """Histograms of scores, one row a set, above strips of images; written as PNG.

    Args:
        path: Where the picture goes.
        title: Over everything.
        sets: What each set of points is; the inside first.
        panels: Scores side by side, each over all sets.
        strips: Rows of images, all of the same number.
    """
    require("matplotlib", "drawing a picture")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8.2), facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(0.02, 0.955, title, fontsize=17, fontweight="bold", color=_INK)
    grid = figure.add_gridspec(1, len(panels), left=0.145, right=0.985, top=0.845, bottom=0.455, wspace=0.08)
    for column, panel in enumerate(panels):
        _draw_panel(figure, grid[column], panel, sets if column == 0 else ())
    slot = 0.36 / len(strips)
    for row, strip in enumerate(strips):
        _draw_strip(figure, strip, top=0.34 - row * slot, height=slot - 0.075)
    figure.savefig(path, dpi=150)


def _draw_panel(figure: Figure, place: SubplotSpec, panel: Panel, labels: Sequence[str]) -> None:
    inside = panel.scores[0]
    threshold = float(np.quantile(inside, 1 - FALSE_ALARMS))
    everything = np.concatenate(list(panel.scores))
    edges = np.linspace(float(everything.min()), float(everything.max()), _BINS + 1)
    rows: list[Axes] = []
    for slot in place.subgridspec(len(panel.scores), 1, hspace=0):
        rows.append(figure.add_subplot(slot, sharex=rows[0] if rows else None))
    highest = max(float(np.histogram(scores, edges)[0].max()) / len(scores) for scores in panel.scores)
    for position, (row, scores) in enumerate(zip(rows, panel.scores, strict=True)):
        _draw_row(row, scores, edges, threshold, _COLOURS[position])
        # One scale for all sets: equal areas are equal shares.
        row.set_ylim(0, 1.15 * highest)
        if labels:
            row.text(
                -0.02, 0.42, labels[position], transform=row.transAxes, ha="right", va="center",
                fontsize=12, fontweight="bold", color=_COLOURS[position],
            )  # fmt: skip
    top, bottom = rows[0], rows[-1]
    width = edges[-1] - edges[0]
    top.set_xlim(edges[0] - 0.04 * width, edges[-1] + 0.14 * width)  # space for what is written on the right
    top.set_title(panel.title, fontsize=13, fontweight="bold", color=_INK, loc="left", pad=26)
    note = f"right of the line: flagged ({FALSE_ALARMS:.0%} false alarms)"
    top.annotate(
        note, (threshold, 1), xycoords=top.get_xaxis_transform(), xytext=(0, 4), textcoords="offset points",
        ha="center", va="bottom", fontsize=9.5, color=_INK, annotation_clip=False,
    )  # fmt: skip
    bottom.set_xlabel(panel.axis, color=_FAINT, fontsize=11)
    bottom.tick_params(axis="x", labelbottom=True, colors=_FAINT, labelsize=9)


def _draw_row(row: Axes, scores: np.ndarray, edges: np.ndarray, threshold: float, colour: str) -> None:
    row.hist(
        scores,
        bins=edges.tolist(),
        weights=np.full(len(scores), 1 / len(scores)),
        color=colour,
        alpha=0.75,
        histtype="stepfilled",
    )
    row.axvline(threshold, color=_INK, linewidth=1.2, linestyle=(0, (4, 3)))
    row.text(
        0.99, 0.62, f"{np.mean(scores > threshold):.0%} flagged", transform=row.transAxes, ha="right",
        fontsize=13, fontweight="bold", color=colour,
    )  # fmt: skip
    row.spines[["top", "right", "left"]].set_visible(False)
    row.spines["bottom"].set_color(_FAINT)
    row.set_yticks([])
    row.tick_params(axis="x", length=0, labelbottom=False)
    row.patch.set_visible(False)


def _draw_strip(figure: Figure, strip: Strip, top: float, height: float) -> None:
    figure.text(0.02, top + 0.015, strip.heading, fontsize=13, fontweight="bold", color=_INK)
    grid = figure.add_gridspec(
        1, len(strip.thumbnails), left=0.02, right=0.985, top=top, bottom=top - height, wspace=0.12
    )
    for column, thumbnail in enumerate(strip.thumbnails):
        colour = _COLOURS[thumbnail.group]
        panel = figure.add_subplot(grid[column])
        panel.imshow(thumbnail.image, cmap="gray_r", vmin=0, vmax=1)
        panel.set_xticks([])
        panel.set_yticks([])
        panel.set_xlabel(thumbnail.caption, fontsize=11, color=colour, labelpad=5)
        for spine in panel.spines.values():
            spine.set(color=colour, linewidth=2.5)
