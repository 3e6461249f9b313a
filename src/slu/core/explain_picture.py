"""An explanation as a picture: where each input stands among the calibration points, and which outputs contribute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slu.artifacts.pictures import BAND, COLOURS, FAINT, INK, checked_ending, write_picture
from slu.core.calibration import COMBINED
from slu.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from slu.core.explain import Explanation

MOST_INPUTS = 60
"""In one picture."""

_ROW, _WIDTH, _TOP, _BELOW = 0.36, 9.5, 0.95, 1.0  # inches
# Reading, name, marker, colour, and how far from the middle of its row: equal percentiles would hide each other.
_READINGS = (
    ("fisher", "magnitude", "o", 0, -0.24),
    ("fisher-relative", "share", "D", 2, 0.24),
    (COMBINED, "combined", "s", 1, 0.0),
)


def draw(found: Explanation, path: str | Path) -> None:
    """Write the picture, atomically; the path's ending says in which format."""
    if not 0 < len(found) <= MOST_INPUTS:
        raise SettingError(f"a picture shows 1 to {MOST_INPUTS} inputs, got {len(found)}; explain fewer, x[:8]")
    checked_ending(path)
    write_picture(_figure(found), path)


def _figure(found: Explanation) -> Figure:
    from matplotlib.figure import Figure

    block = _ROW * len(found)
    height = _TOP + block + _BELOW
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")

    def place(left: float, wide: float) -> Axes:
        axes = figure.add_axes((left / _WIDTH, _BELOW / height, wide / _WIDTH, block / height))
        _prepared(axes, len(found))
        return axes

    figure.text(
        0.015, 1 - 0.28 / height, "Why these inputs score as they do", fontsize=13.5, fontweight="bold", color=INK,
        va="center",
    )  # fmt: skip
    _draw_percentiles(place(0.85, 4.7), found)
    _write_pvalues(place(5.6, 0.75), found)
    _draw_outputs(place(6.5, 2.7), found)
    _write_notes(figure, found, height)
    return figure


def _prepared(axes: Axes, rows: int) -> None:
    axes.set_ylim(rows - 0.5, -0.5)
    for position in range(0, rows, 2):
        axes.axhspan(position - 0.5, position + 0.5, color=BAND, zorder=0, linewidth=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.tick_params(length=0)


def _titled(axes: Axes, text: str, left: float = 0.0) -> None:
    axes.annotate(
        text, (left, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", fontsize=9.5,
        fontweight="bold", color=INK, va="bottom",
    )  # fmt: skip


def _draw_percentiles(axes: Axes, found: Explanation) -> None:
    axes.set_xlim(-2, 102)
    axes.axvspan(95, 102, color=COLOURS[1], alpha=0.12, zorder=1, linewidth=0)
    for tick in range(0, 101, 25):
        axes.axvline(tick, color="white", linewidth=1.2, zorder=1)
    axes.set_xticks(range(0, 101, 25), [f"{tick} %" for tick in range(0, 101, 25)])
    axes.tick_params(axis="x", labelsize=8, colors=FAINT)
    _titled(axes, "Calibration points that score less")
    for position in range(len(found)):
        axes.text(
            -0.02, position, f"input {position}", transform=axes.get_yaxis_transform(), ha="right", va="center",
            fontsize=9, color=INK,
        )  # fmt: skip
    for reading, label, marker, colour, off in _READINGS:
        values = found.percentiles[reading].tolist()
        axes.plot(
            values, [place + off for place in range(len(found))], linestyle="none", marker=marker,
            color=COLOURS[colour], label=label,
            markersize=6 if reading == COMBINED else 5, markeredgecolor="white", markeredgewidth=0.7, zorder=3,
            clip_on=False,
        )  # fmt: skip
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.26 / (_ROW * len(found))), ncols=3, frameon=False, fontsize=8.5,
        borderaxespad=0, handletextpad=0.2,
    )  # fmt: skip


def _write_pvalues(axes: Axes, found: Explanation) -> None:
    _titled(axes, "p-value", 0.2)
    assert found.pvalues is not None  # there is no picture without calibration
    for position, value in enumerate(found.pvalues.tolist()):
        rare = value <= 0.05
        axes.text(
            0.95, position, f"{value:.3f}", transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=9,
            color=COLOURS[1] if rare else INK, fontweight="bold" if rare else "normal",
        )  # fmt: skip


def _draw_outputs(axes: Axes, found: Explanation) -> None:
    axes.set_xlim(0, 1)
    _titled(axes, "Outputs that contribute most")
    for position in range(len(found)):
        left = 0.0
        pairs = zip(found.outputs[position].tolist(), found.contributions[position].tolist(), strict=True)
        for turn, (output, share) in enumerate(pairs):
            axes.barh(
                position, share, left=left, height=0.62, color=COLOURS[0], alpha=0.75 * 0.62**turn, edgecolor="white",
                linewidth=1, zorder=2,
            )  # fmt: skip
            # A name and its per cent take about a tenth of the panel.
            text = f"{output}: {share:.0%}" if share > 0.2 else f"{output}" if share > 0.06 else ""
            axes.text(left + share / 2, position, text, ha="center", va="center", fontsize=8, color=INK, zorder=3)
            left += share
    axes.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.tick_params(axis="x", labelsize=8, colors=FAINT)


def _write_notes(figure: Figure, found: Explanation, height: float) -> None:
    assert found.calibration is not None
    notes = (
        f"Magnitude: how much the prediction could change. Share: of that, what the data do not pin down. "
        f"Against {found.calibration.points:,} calibration points ({found.calibration.source}).",
        "Combined: both, standardized and added; the p-value is its, bold at 0.05 and below. "
        "Shaded: above 95 % of the calibration points.",
    )
    figure.text(0.015, 0.1 / height, "\n".join(notes), fontsize=7.5, color=FAINT, va="bottom", linespacing=1.5)
