"""The demo's picture: SLU's score beside a baseline, and the images at both ends of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from slu.artifacts.pictures import COLOURS, FAINT, INK, checked_ending, write_picture
from slu.cli.demo_steps import FALSE_ALARMS, HELD_OUT, INSIDE, TURNED, UNSEEN, Judged

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
_SUFFIXES = {INSIDE: "", UNSEEN: ", unseen", TURNED: ", turned"}
_COLOURS = {INSIDE: COLOURS[0], UNSEEN: COLOURS[1], TURNED: COLOURS[3]}
_SCORE = "SLU combined"
_SHOWN = 14
_BINS = 45
_FAR = 2.5  # how far beyond the threshold the axis goes, in distances of the threshold from the middle
_NAMED = 0.1  # share of a set beyond the axis that is named


def draw(judged: Judged, path: Path) -> None:
    """Write the picture: histograms of two scores, one row per set, over the images at both ends of SLU's.

    SLU's default reading stands beside the largest logit: the one measures how far the prediction
    could change and how much of that the data leave open, the other is what the network itself believes.
    """
    checked_ending(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8.2), facecolor="white")
    title = f"A network that never saw {_NAMES}: which images should one not trust it on?"
    figure.text(0.02, 0.955, title, fontsize=17, fontweight="bold", color=INK)
    left, right = figure.add_gridspec(1, 2, left=0.145, right=0.985, top=0.845, bottom=0.455, wspace=0.08)
    rows = _draw_panel(figure, left, judged.scores[_SCORE], "How unsure SLU is", "SLU's score, combined")
    for group, row in rows.items():
        row.text(
            -0.02, 0.42, _LABELS[group], transform=row.transAxes, ha="right", va="center",
            fontsize=12, fontweight="bold", color=_COLOURS[group],
        )  # fmt: skip
    title = "How unsure the network believes it is"
    _draw_panel(figure, right, judged.scores["max logit"], title, "minus the largest logit")
    order = torch.cat(list(judged.scores[_SCORE].values())).argsort().tolist()
    _draw_strip(figure, judged, order[:_SHOWN], "Of all these images, SLU is surest of …", top=0.34)
    _draw_strip(figure, judged, order[: -_SHOWN - 1 : -1], "… and least sure of", top=0.16)
    write_picture(figure, path)


def _draw_panel(
    figure: Figure, place: SubplotSpec, by_set: Mapping[str, Tensor], title: str, axis: str
) -> dict[str, Axes]:
    """One score over all sets; returns the row of each set."""
    scores = {group: values.numpy() for group, values in by_set.items()}
    threshold = float(np.quantile(scores[INSIDE], 1 - FALSE_ALARMS))
    everything = np.concatenate(list(scores.values()))
    # What is far beyond the threshold is drawn at the right end, or the rest would be squeezed to the left.
    furthest, apart = float(everything.max()), threshold - float(np.median(scores[INSIDE]))
    furthest = min(furthest, threshold + _FAR * apart) if apart else furthest
    edges = np.linspace(float(everything.min()), furthest, _BINS + 1)
    counts = {
        group: np.histogram(values.clip(max=furthest), edges)[0] / len(values) for group, values in scores.items()
    }
    highest = max(float(shares[:-1].max()) for shares in counts.values())
    rows: dict[str, Axes] = {}
    grid = place.subgridspec(len(scores), 1, hspace=0)
    for row, (group, values) in enumerate(scores.items()):
        rows[group] = figure.add_subplot(grid[row, 0], sharex=rows.get(INSIDE))
        _draw_row(rows[group], values, edges, threshold, _COLOURS[group])
        beyond = float(np.mean(values > furthest))
        if beyond > _NAMED:
            _write_beyond(rows[group], beyond, float(np.median(values[values > furthest])), furthest, _COLOURS[group])
        # One scale for all sets: equal areas are equal shares.
        rows[group].set_ylim(0, 1.15 * highest)
    top, bottom = rows[INSIDE], rows[TURNED]
    width = edges[-1] - edges[0]
    top.set_xlim(edges[0] - 0.04 * width, edges[-1] + 0.14 * width)  # space for what is written on the right
    top.set_title(title, fontsize=13, fontweight="bold", color=INK, loc="left", pad=26)
    note = f"right of the line: flagged ({FALSE_ALARMS:.0%} false alarms)"
    top.annotate(
        note, (threshold, 1), xycoords=top.get_xaxis_transform(), xytext=(0, 4), textcoords="offset points",
        ha="center", va="bottom", fontsize=9.5, color=INK, annotation_clip=False,
    )  # fmt: skip
    bottom.set_xlabel(f"{axis}   (larger: less sure →)", color=FAINT, fontsize=11)
    bottom.tick_params(axis="x", labelbottom=True, colors=FAINT, labelsize=9)
    return rows


def _write_beyond(row: Axes, share: float, middle: float, furthest: float, colour: str) -> None:
    row.annotate(
        f"{share:.0%} beyond, around {middle:.0f} →", (furthest, 0.2), xycoords=row.get_xaxis_transform(),
        xytext=(-10, 0), textcoords="offset points", ha="right", fontsize=10, color=colour,
    )  # fmt: skip


def _draw_row(row: Axes, scores: np.ndarray, edges: np.ndarray, threshold: float, colour: str) -> None:
    shares = np.full(len(scores), 1 / len(scores))
    row.hist(
        scores.clip(max=edges[-1]), bins=edges.tolist(), weights=shares, color=colour, alpha=0.75, histtype="stepfilled"
    )
    row.axvline(threshold, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    row.text(
        0.84, 0.62, f"{np.mean(scores > threshold):.0%} flagged", transform=row.transAxes, ha="right",
        fontsize=13, fontweight="bold", color=colour,
    )  # fmt: skip
    row.spines[["top", "right", "left"]].set_visible(False)
    row.spines["bottom"].set_color(FAINT)
    row.set_yticks([])
    row.tick_params(axis="x", length=0, labelbottom=False)
    row.patch.set_visible(False)


def _draw_strip(figure: Figure, judged: Judged, chosen: Sequence[int], heading: str, top: float) -> None:
    """A row of images, by their positions among those of all sets, framed in the colours of their sets."""
    images = torch.cat([points.images for points in judged.sets.values()])
    captions = [
        (f"{digit}{_SUFFIXES[group]}", _COLOURS[group])
        for group, points in judged.sets.items()
        for digit in points.digits.tolist()
    ]
    figure.text(0.02, top + 0.015, heading, fontsize=13, fontweight="bold", color=INK)
    grid = figure.add_gridspec(1, len(chosen), left=0.02, right=0.985, top=top, bottom=top - 0.105, wspace=0.12)
    for column, position in enumerate(chosen):
        caption, colour = captions[position]
        panel = figure.add_subplot(grid[0, column], xticks=[], yticks=[])
        panel.imshow(images[position, 0].numpy(), cmap="gray_r", vmin=0, vmax=1)
        panel.set_xlabel(caption, fontsize=11, color=colour, labelpad=5)
        for spine in panel.spines.values():
            spine.set(color=colour, linewidth=2.5)
