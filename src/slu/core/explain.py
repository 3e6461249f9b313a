"""Why an input scores as it does: how much its prediction could change, how much of that is open, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slu.artifacts.pictures import COLOURS, FAINT, INK, checked_ending, printed, striped, write_picture
from slu.budgets import Cost
from slu.checks import whole
from slu.core.calibration import Calibration
from slu.core.directions import ALL, FISHER, Outputs
from slu.core.readout import COMBINED, READINGS, Readout, score_batches
from slu.data import Batch
from slu.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 110
MOST_INPUTS = 60
"""In one picture."""

_ROW, _WIDTH, _TOP, _BELOW = 0.36, 9.5, 0.95, 1.0  # inches
# Reading, name, marker, colour, and how far from the middle of its row: equal percentiles would hide each other.
_READINGS = (
    ("fisher", "magnitude", "o", 0, -0.24),
    ("fisher-relative", "share", "D", 2, 0.24),
    (COMBINED, "combined", "s", 1, 0.0),
)
_NOTHING = "-"


@dataclass(frozen=True, eq=False)
class Explanation:
    """What stands behind the scores of n inputs; print it, or draw it with `plot(path)`.

    Attributes:
        magnitude: (n,) how much the prediction could change: the reading "fisher", of the rows that the score is
            calibrated with.
        share: (n,) which share of that change the data do not determine: "fisher-relative" of the same rows.
        combined: (n,) the soft maximum of the standardized readings; None without calibration.
        percentiles: (n,) by reading, per cent of the calibration points that score less; empty without calibration.
        pvalues: (n,) of the combined reading; None without calibration.
        outputs: (n, q) which outputs contribute most to the trace over all outputs. Of a classifier these are labels
            beside the predicted one, which has no part of its own: how far the prediction could move between the two.
        contributions: (n, q) their shares of the contributions of all outputs.
        calibration: What the percentiles are of.
        why: There is no calibration.
    """

    magnitude: Tensor
    share: Tensor
    combined: Tensor | None
    percentiles: dict[str, Tensor]
    pvalues: Tensor | None
    outputs: Tensor
    contributions: Tensor
    calibration: Calibration | None
    why: str = ""

    def __len__(self) -> int:
        return len(self.magnitude)

    def __str__(self) -> str:
        return _table(self)

    def plot(self, path: str | Path) -> None:
        """Draw where every input stands among the calibration points, and which outputs contribute.

        Args:
            path: Where to, atomically; its ending says what: .png, .svg or .pdf.

        Raises:
            SettingError: Another ending, too many inputs for a picture, or no calibration.
            StorageError: The path cannot be written.
        """
        if self.calibration is None:
            raise SettingError(f"a picture needs calibration points, and the score has none: {self.why}")
        _draw(self, path)


def explain(
    readout: Readout,
    calibration: Calibration | None,
    why: str,
    rows: Outputs,
    data: Any,
    outputs: int,
    *,
    cost: Callable[[], Cost],
    progress: bool | None,
) -> Explanation:
    """The work of `SluScore.explain`: `rows` that the readings are of; `why` there is no calibration, if there is none.

    Cost: t gradients per input for the contributions, and those of the readings.
    """
    count = whole("outputs", outputs, least=1)
    standard = None if calibration is None else calibration.standard
    names = ["fisher", "fisher-relative", *([] if standard is None else [COMBINED])]
    wanted: dict[Outputs, set[str]] = {ALL: {FISHER}}
    wanted.setdefault(rows, set()).update(kind for name in names for kind in READINGS[name].rows)

    def read(batch: Batch) -> list[Tensor]:
        measured = readout.measure(batch, wanted, standard=standard)
        each = replace(measured[ALL], per_output=True).open(FISHER)
        return [each, *(READINGS[name].score(measured[rows]) for name in names)]

    parts, *values = score_batches(readout.network, data, read, cost=cost, progress=progress)
    scores = dict(zip(names, values, strict=True))
    parts = parts.clamp(min=0)
    shares, places = (parts / parts.sum(1, keepdim=True).clamp(min=torch.finfo(parts.dtype).tiny)).topk(
        min(count, parts.shape[1]), dim=1
    )
    return Explanation(
        magnitude=scores["fisher"],
        share=scores["fisher-relative"],
        combined=scores.get(COMBINED),
        percentiles={} if calibration is None else {n: calibration.percentile(v, n) for n, v in scores.items()},
        pvalues=None if calibration is None else calibration.pvalue(scores[COMBINED], COMBINED),
        outputs=places,
        contributions=shares,
        calibration=calibration,
        why=why,
    )


def _table(explanation: Explanation) -> str:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("input", "magnitude", "per cent\nbelow", "share", "per cent\nbelow", "combined", "per cent\nbelow"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    table.add_column("p-value", justify="right", no_wrap=True, vertical="bottom")
    table.add_column("outputs that contribute most", vertical="bottom", overflow="fold")
    for place in range(len(explanation)):
        table.add_row(*_row(explanation, place))
    return printed([table, "", _note(explanation)], WIDTH)


def _row(explanation: Explanation, place: int) -> list[str]:
    def below(reading: str) -> str:
        return f"{explanation.percentiles[reading][place]:.1f}" if explanation.percentiles else _NOTHING

    outputs = zip(explanation.outputs[place].tolist(), explanation.contributions[place].tolist(), strict=True)
    return [
        str(place),
        f"{explanation.magnitude[place]:.3g}",
        below("fisher"),
        f"{explanation.share[place]:.3f}",
        below("fisher-relative"),
        _NOTHING if explanation.combined is None else f"{explanation.combined[place]:+.2f}",
        below(COMBINED),
        _NOTHING if explanation.pvalues is None else f"{explanation.pvalues[place]:.3g}",
        ", ".join(f"{output} ({share:.0%})" for output, share in outputs if share > 0),
    ]


def _note(explanation: Explanation) -> str:
    what = (
        "Magnitude: how much the prediction could change (fisher). Share: of that, what the data do not determine "
        "(fisher-relative). Combined: the soft maximum of these, the variance and, for classes, minus the largest "
        "logit, standardized on calibration points; the p-value is its."
    )
    if explanation.calibration is None:
        return f"{what} Not calibrated: {explanation.why}."
    points, source = explanation.calibration.points, explanation.calibration.source
    return f"{what} Per cent below: of {points:,} calibration points ({source})."


def _draw(explanation: Explanation, path: str | Path) -> None:
    """Write the picture, atomically; the path's ending says in which format."""
    if not 0 < len(explanation) <= MOST_INPUTS:
        raise SettingError(f"a picture shows 1 to {MOST_INPUTS} inputs, got {len(explanation)}; explain fewer, x[:8]")
    checked_ending(path)
    write_picture(_figure(explanation), path)


def _figure(explanation: Explanation) -> Figure:
    from matplotlib.figure import Figure

    block = _ROW * len(explanation)
    height = _TOP + block + _BELOW
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")

    def place(left: float, wide: float) -> Axes:
        inside = (left / _WIDTH, _BELOW / height, wide / _WIDTH, block / height)
        return striped(figure.add_axes(inside, xticks=[], yticks=[]), len(explanation))

    figure.text(
        0.015, 1 - 0.28 / height, "Why these inputs score as they do", fontsize=13.5, fontweight="bold", color=INK,
        va="center",
    )  # fmt: skip
    _draw_percentiles(place(0.85, 4.7), explanation)
    _write_pvalues(place(5.6, 0.75), explanation)
    _draw_outputs(place(6.5, 2.7), explanation)
    _write_notes(figure, explanation, height)
    return figure


def _titled(axes: Axes, text: str, left: float = 0.0) -> None:
    axes.annotate(
        text, (left, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", fontsize=9.5,
        fontweight="bold", color=INK, va="bottom",
    )  # fmt: skip


def _draw_percentiles(axes: Axes, explanation: Explanation) -> None:
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
    for reading, label, marker, colour, off in _READINGS:
        values = explanation.percentiles[reading].tolist()
        axes.plot(
            values, [place + off for place in range(len(explanation))], linestyle="none", marker=marker,
            color=COLOURS[colour], label=label,
            markersize=6 if reading == COMBINED else 5, markeredgecolor="white", markeredgewidth=0.7, zorder=3,
            clip_on=False,
        )  # fmt: skip
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.26 / (_ROW * len(explanation))), ncols=3, frameon=False,
        fontsize=8.5, borderaxespad=0, handletextpad=0.2,
    )  # fmt: skip


def _write_pvalues(axes: Axes, explanation: Explanation) -> None:
    _titled(axes, "p-value", 0.2)
    assert explanation.pvalues is not None  # there is no picture without calibration
    for position, value in enumerate(explanation.pvalues.tolist()):
        rare = value <= 0.05
        axes.text(
            0.95, position, f"{value:.3f}", transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=9,
            color=COLOURS[1] if rare else INK, fontweight="bold" if rare else "normal",
        )  # fmt: skip


def _draw_outputs(axes: Axes, explanation: Explanation) -> None:
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


def _write_notes(figure: Figure, explanation: Explanation, height: float) -> None:
    assert explanation.calibration is not None
    notes = (
        f"Magnitude: how much the prediction could change. Share: of that, what the data do not determine. "
        f"Against {explanation.calibration.points:,} calibration points ({explanation.calibration.source}).",
        "Combined: the soft maximum of the standardized readings; the p-value is its, bold at 0.05 and below. "
        "Shaded: above 95 % of the calibration points.",
    )
    figure.text(0.015, 0.1 / height, "\n".join(notes), fontsize=7.5, color=FAINT, va="bottom", linespacing=1.5)
