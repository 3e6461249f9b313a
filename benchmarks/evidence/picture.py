"""The picture of the evidence: a panel per study, a line per method, a dot per network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from benchmarks.evidence.candidates import BEFORE, COMPETITOR, DEFAULT, ENSEMBLE, READING
from benchmarks.evidence.checks import by_study, label
from benchmarks.evidence.roles import JUDGE

COLOURS = {DEFAULT: "#C8102E", READING: "#2F6DB5", BEFORE: "#8E6BB0", COMPETITOR: "#444444", ENSEMBLE: "#D08A1D"}
WORDS = {
    DEFAULT: "SLU's default",
    READING: "its other readings",
    BEFORE: "its default as it was",
    COMPETITOR: "competitors",
    ENSEMBLE: "ensembles (further trainings)",
}
LEFT, RIGHT = 0.4, 1.01
"""Ends of the axis; what is below is drawn as an arrow at its left end."""

_ACROSS = 5
_WIDTH, _LINE, _ABOVE = 2.15, 0.155, 0.55  # inches: of a panel, of a method's line, of a panel's title and ticks


def draw(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Mean AUROC over the shifts of every network; networks that judge are filled."""
    studies = by_study(results)
    kinds = {label(row): row["kind"] for each in results for row in each["rows"]}
    names = sorted(kinds, key=lambda name: list(COLOURS).index(kinds[name]))  # stable: else as they are judged
    across = min(_ACROSS, max(1, len(studies)))
    down = max(1, -(-len(studies) // across))
    size = (_WIDTH * across + 2.6, down * (_LINE * len(names) + _ABOVE) + 0.6)
    figure, grid = plt.subplots(down, across, figsize=size, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for axis in panels[len(studies) :]:
        axis.set_axis_off()
    for place, (axis, (study, networks)) in enumerate(zip(panels, studies.items(), strict=False)):
        _panel(axis, networks, names)
        axis.set_title(study, fontsize=8)
        axis.tick_params(labelbottom=place + across >= len(studies), labelsize=7)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    handles = [Line2D([], [], ls="", marker="o", color=colour, label=WORDS[kind]) for kind, colour in COLOURS.items()]
    handles += [
        Line2D([], [], ls="", marker="o", color="0.4", label="judges"),
        Line2D([], [], ls="", marker="o", color="0.4", markerfacecolor="white", label="was used to choose"),
        Line2D([], [], ls="", marker="<", color="0.4", label=f"below {LEFT}"),
    ]
    figure.legend(handles=handles, loc="lower center", ncols=4, fontsize=7, frameon=False)
    figure.supxlabel("mean AUROC over the shifts, one dot per network", fontsize=8, y=0.62 / size[1])
    figure.tight_layout(rect=(0, 0.62 / size[1], 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(axis: Axes, networks: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    for network in networks:
        judges = network["role"] == JUDGE
        for row in network["rows"]:
            value, colour = row["mean"], COLOURS[row["kind"]]
            axis.plot(
                max(value, LEFT), names.index(label(row)), "o" if value >= LEFT else "<",
                ms=5 if row["kind"] == DEFAULT else 3.6, color=colour, clip_on=False,
                markerfacecolor=colour if judges else "white", zorder=3,
            )  # fmt: skip
            if row["kind"] == DEFAULT and judges:
                axis.axvline(value, color=colour, lw=0.6, alpha=0.35, zorder=1)
    axis.set_xlim(LEFT, RIGHT)
    axis.set_xticks([0.4, 0.6, 0.8, 1.0])
    axis.axvline(0.5, color="0.75", lw=0.8, zorder=0)
    axis.grid(color="0.93", lw=0.6)
    axis.set_axisbelow(True)
