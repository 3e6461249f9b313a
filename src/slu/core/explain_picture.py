"""The picture of an explanation: percentiles of all readings, p-values, the highest view in words, and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from slu.artifacts.pictures import COLOURS, FAINT, INK, checked_ending, striped, write_picture
from slu.core.calibration import Calibration
from slu.core.standard import ANGLE, COMBINED, DISTANCE
from slu.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_INPUTS = 60
"""In one picture."""

_ROW, _WIDTH, _TOP, _BELOW = 0.4, 12.6, 0.95, 1.05  # inches
# Reading, marker, colour. The readings of one row stand at different heights, because equal percentiles would hide
# each other.
_MARKERS = {
    "fisher": ("o", 0),
    "fisher-relative": ("D", 6),
    "variance": ("P", 7),
    "entropy": ("^", 4),
    "max-logit": ("^", 4),
    DISTANCE: ("v", 2),
    ANGLE: ("X", 3),
    COMBINED: ("s", 1),
}
_SPREAD = 0.62  # of a row, over which its markers stand


class Drawn(Protocol):
    """What is drawn of an `Explanation`."""

    @property
    def percentiles(self) -> Mapping[str, Tensor]: ...
    @property
    def pvalues(self) -> Tensor | None: ...
    @property
    def reasons(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> Tensor: ...
    @property
    def contributions(self) -> Tensor: ...
    @property
    def calibration(self) -> Calibration | None: ...
    def __len__(self) -> int: ...


def draw(explanation: Drawn, path: str | Path) -> None:
    """Write the picture, atomically; the path's ending says in which format.

    Raises:
        SettingError: No inputs, or too many.
    """
    if not 0 < len(explanation) <= MOST_INPUTS:
        raise SettingError(f"a picture shows 1 to {MOST_INPUTS} inputs, got {len(explanation)}; explain fewer, x[:8]")
    checked_ending(path)
    write_picture(_figure(explanation), path)


def _figure(explanation: Drawn) -> Figure:
    from matplotlib.figure import Figure

    block = _ROW * len(explanation)
    height = _TOP + block + _BELOW
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")

    def place(left: float, wide: float) -> Axes:
        inside = (left / _WIDTH, _BELOW / height, wide / _WIDTH, block / height)
        return striped(figure.add_axes(inside, xticks=[], yticks=[]), len(explanation))

    figure.text(
        0.012, 1 - 0.28 / height, "Why these inputs score as they do", fontsize=13.5, fontweight="bold", color=INK,
        va="center",
    )  # fmt: skip
    _draw_percentiles(place(0.85, 4.7), explanation)
    _write_pvalues(place(5.6, 0.75), explanation)
    _write_reasons(place(6.45, 3.2), explanation)
    _draw_outputs(place(9.75, 2.6), explanation)
    _write_notes(figure, explanation, height)
    return figure


def _titled(axes: Axes, text: str, left: float = 0.0) -> None:
    axes.annotate(
        text, (left, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", fontsize=9.5,
        fontweight="bold", color=INK, va="bottom",
    )  # fmt: skip


def _draw_percentiles(axes: Axes, explanation: Drawn) -> None:
    axes.set_xlim(-2, 102)
    axes.axvspan(95, 102, color=COLOURS[1], alpha=0.12, zorder=1, linewidth=0)
    for tick in range(0, 101, 25):
        axes.axvline(tick, color="white", linewidth=1.2, zorder=1)
    axes.set_xticks(range(0, 101, 25), [f"{tick} %" for tick in range(0, 101, 25)])
    axes.tick_params(axis="x", labelsize=8, colors=FAINT)
    _titled(axes, "Calibration points that score less")
    for position in range(len(explanation)):
        axes.text(
            -0.02, position, f"input {position}", transform=axes.get_yaxis_transform(), ha="right", va="center",
            fontsize=9, color=INK,
        )  # fmt: skip
    shown = [reading for reading in _MARKERS if reading in explanation.percentiles]
    for turn, reading in enumerate(shown):
        marker, colour = _MARKERS[reading]
        off = _SPREAD * (turn / max(1, len(shown) - 1) - 0.5)
        axes.plot(
            explanation.percentiles[reading].tolist(), [place + off for place in range(len(explanation))],
            linestyle="none", marker=marker, color=COLOURS[colour], label=reading, markeredgecolor="white",
            markersize=6 if reading == COMBINED else 5, markeredgewidth=0.6, zorder=3, clip_on=False,
        )  # fmt: skip
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.26 / (_ROW * len(explanation))), ncols=len(shown), frameon=False,
        fontsize=8, borderaxespad=0, handletextpad=0.1, columnspacing=1.0,
    )  # fmt: skip


def _write_pvalues(axes: Axes, explanation: Drawn) -> None:
    _titled(axes, "p-value", 0.2)
    assert explanation.pvalues is not None  # there is no picture without calibration
    for position, value in enumerate(explanation.pvalues.tolist()):
        _write(axes, 0.95, position, f"{value:.3f}", rare=value <= 0.05, ha="right")


def _write_reasons(axes: Axes, explanation: Drawn) -> None:
    _titled(axes, "Raised most by")
    assert explanation.pvalues is not None
    for position, (reason, value) in enumerate(zip(explanation.reasons, explanation.pvalues.tolist(), strict=True)):
        _write(axes, 0.0, position, _shortened(reason), rare=value <= 0.05, ha="left")


def _shortened(reason: str, most: int = 46) -> str:
    return reason if len(reason) <= most else f"{reason[: most - 1]}…"


def _write(axes: Axes, left: float, position: int, text: str, *, rare: bool, ha: str) -> None:
    axes.text(
        left, position, text, transform=axes.get_yaxis_transform(), ha=ha, va="center", fontsize=9,
        color=COLOURS[1] if rare else INK, fontweight="bold" if rare else "normal",
    )  # fmt: skip


def _draw_outputs(axes: Axes, explanation: Drawn) -> None:
    axes.set_xlim(0, 1)
    _titled(axes, "Outputs that contribute most")
    for position in range(len(explanation)):
        left = 0.0
        pairs = zip(explanation.outputs[position].tolist(), explanation.contributions[position].tolist(), strict=True)
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


def _write_notes(figure: Figure, explanation: Drawn, height: float) -> None:
    assert explanation.calibration is not None
    notes = (
        f"Against {explanation.calibration.points:,} calibration points ({explanation.calibration.source}). The "
        "p-value is of the combined reading, bold at 0.05 and below. Shaded: above 95 % of the calibration points.",
        "Raised most by: the highest view. fisher: how much the prediction could change; fisher-relative: of that, the "
        "share that the data do not determine; distance and angle: how far a layer's inputs are from the data's.",
    )
    figure.text(0.012, 0.1 / height, "\n".join(notes), fontsize=7.5, color=FAINT, va="bottom", linespacing=1.5)
