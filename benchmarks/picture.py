"""One picture of what `cost` and `growth` measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from benchmarks.cost import FIT_AIM, QUERY_AIM
from benchmarks.networks import SUBJECTS

Results = Mapping[str, Any]
_OURS, _THEIRS, _AIM = "C0", "0.6", "C3"


def draw(results: Results, path: Path) -> None:
    """Fits and queries with their aims and peers, and lines of growth; panels without results stay empty."""
    figure, axes = plt.subplots(2, 3, figsize=(12, 6.4))
    cost, growth = results.get("cost"), results.get("growth")
    if cost is not None:
        _ratios(axes[0, 0], cost, "fit", FIT_AIM, "fit / forward + backward, n = 5,000")
        _ratios(axes[0, 1], cost, "query", QUERY_AIM, "query of 32 / forward")
        _kept(axes[0, 2], cost["networks"]["1"])
    if growth is not None:
        _lines(axes[1, 0], growth["n"], "points", {"seconds": _seconds, "peak, 100 MB": _peak}, "fit of a LeNet")
        measured = {"fit / forward + backward": _fit, "query / forward": _query}
        _lines(axes[1, 1], growth["p"], "parameters", measured, "MLPs")
        _lines(axes[1, 2], growth["t"], "outputs", {"query / forward": _query}, "MLP with t outputs")
    for axis, name in zip(axes[1], ("n", "p", "t"), strict=True):
        axis.set_xlabel(name, fontsize=8)
    for axis in axes.flat:
        axis.tick_params(labelsize=7)
        for side in (axis.xaxis, axis.yaxis):
            side.set_minor_formatter(NullFormatter())  # the labels of short logarithmic axes overlap
        axis.grid(color="0.93")
        axis.set_axisbelow(True)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _ratios(axis: Axes, cost: Results, what: str, aims: Mapping[bool, str], title: str) -> None:
    """Ours with one and two threads and the aim; the peers of the same network below it."""
    labels: list[str] = []
    for name, subject in SUBJECTS.items():
        for threads, results in cost["networks"].items():
            number = _number(results.get(name, {}), what)
            if number is not None:
                _dot(axis, labels, f"{name}, {threads} thread{'s' if threads != '1' else ''}", number, _OURS)
                aim = float(aims[subject.convolutional])
                axis.plot([aim, aim], [len(labels) - 1.4, len(labels) - 0.6], color=_AIM)
        for peer, result in cost["peers"].get(name, {}).items():
            number = _number(result, what)
            if number is not None:
                _dot(axis, labels, f"   {peer}", number, _THEIRS)
    axis.set_yticks(range(len(labels)), labels)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlim(left=0.5)
    axis.set_title(f"{title} (red: aim)", fontsize=8)


def _dot(axis: Axes, labels: list[str], label: str, number: Mapping[str, float], color: str) -> None:
    spread = [[number["median"] - number["low"]], [number["high"] - number["median"]]]
    axis.errorbar(number["median"], len(labels), xerr=spread, fmt="o", color=color, lw=0.8)
    labels.append(label)


def _number(result: Results, what: str) -> Mapping[str, float] | None:
    """The ratio of a fit or of a query of 32; None where it was not measured."""
    number = result.get(what)
    return number if number is None or "median" in number else number["32"]


def _kept(axis: Axes, networks: Results) -> None:
    measured = {name: each for name, each in networks.items() if "kept" in each}
    for shift, key, color in ((-0.2, "beyond", _OURS), (0.2, "rows + columns", _AIM)):
        places = [place + shift for place in range(len(measured))]
        axis.barh(places, [each["kept"][key] / each["parameters"] for each in measured.values()], 0.4, color=color,
                  label="kept beyond s·k, over p" if key == "beyond" else "rows + columns, over p")  # fmt: skip
    axis.set_yticks(range(len(measured)), list(measured))
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.legend(fontsize=7, loc="lower right")


def _lines(axis: Axes, rows: list[Results], across: str, lines: Mapping[str, Any], title: str) -> None:
    measured = [row for row in rows if "failed" not in row]
    for label, value in lines.items():
        axis.plot([row[across] for row in measured], [value(row) for row in measured], "o-", ms=3, label=label)
    axis.set_xscale("log")
    values = [value(row) for value in lines.values() for row in measured]
    if values and max(values) > 10 * min(values):
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.legend(fontsize=7)
    axis.set_title(title, fontsize=8)


def _seconds(row: Results) -> float:
    return row["seconds"]


def _peak(row: Results) -> float:
    return row["peak"] / 1e8


def _fit(row: Results) -> float:
    return row["fit"]["median"]


def _query(row: Results) -> float:
    number = row["query"]
    return number["median"] if "median" in number else number["32"]["median"]
