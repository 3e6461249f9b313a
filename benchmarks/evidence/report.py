"""What the studies found, as a table in the terminal, and as JSON, CSV and a picture for the documentation."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
from rich.table import Table

Found = Mapping[str, Any]
FIELDS = ("method", "solver", "scale", "rank", "ridge", "reading")

# What the picture shows, of all rows: the methods to compare with, the paper's reading, the default and its parts.
SHOWN: dict[str, dict[str, Any]] = {
    "max logit": {"method": "MaxLogit"},
    "energy": {"method": "Energy"},
    "entropy": {"method": "Entropy"},
    "diagonal Laplace": {"method": "DiagonalLaplace", "reading": "variance"},
    "diagonal Laplace, fisher": {"method": "DiagonalLaplace", "reading": "fisher"},
    "ensemble of 3, variance": {"method": "DeepEnsemble", "reading": "variance"},
    "ensemble of 3, information": {"method": "DeepEnsemble", "reading": "mutual-information"},
    "unscaled variance": {"method": "SLU", "scale": "", "ridge": 0.0, "rank": "k", "reading": "variance"},
    "fisher": {"method": "SLU", "scale": "diagonal", "ridge": 0.01, "rank": "k", "reading": "fisher"},
    "fisher-relative": {"method": "SLU", "scale": "diagonal", "ridge": 0.01, "rank": "k", "reading": "fisher-relative"},
    "combined (default)": {"method": "SLU", "scale": "diagonal", "ridge": 0.01, "rank": "k", "reading": "combined"},
}


def mean_auroc(row: Found) -> float:
    """Over the outside sets."""
    return mean(each["auroc"][0] for each in row["sets"].values())


def table(found: Found) -> Table:
    """All rows of one network."""
    quality = ", ".join(f"{name} {value:.3f}" for name, value in found["quality"].items())
    title = (
        f"{found['study']} {found['seed']}: {quality}; n = {found['points']}, k = {found['rank']}, s = {found['size']}"
    )
    shown = Table(title=title, title_justify="left")
    sets = list(found["rows"][0]["sets"])
    for heading in (*FIELDS, "mean AUROC", *sets):
        shown.add_column(heading, no_wrap=True)
    for row in found["rows"]:
        areas = (f"{row['sets'][name]['auroc'][0]:.3f}" for name in sets)
        shown.add_row(
            *(str(row[field] if row[field] is not None else "") for field in FIELDS), f"{mean_auroc(row):.3f}", *areas
        )
    return shown


def write(folder: Path, target: Path) -> list[Path]:
    """Everything below the folder as evidence.json, .csv and .png; returns the three paths."""
    found = _found(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = [target / f"evidence.{ending}" for ending in ("json", "csv", "png")]
    paths[0].write_text(_compact(found), encoding="utf-8")
    with paths[1].open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(
            ["study", "seed", *FIELDS, "outside", "auroc", "low", "high", "fpr95", "fpr95 low", "fpr95 high"]
        )
        for each in found:
            for row in each["rows"]:
                for name, numbers in row["sets"].items():
                    lines.writerow([each["study"], each["seed"], *(row[field] for field in FIELDS), name,
                                    *numbers["auroc"], *numbers["fpr95"]])  # fmt: skip
    _picture(found, paths[2])
    return paths


def summary(folder: Path) -> str:
    """Markdown tables for the documentation, a study a line: AUROC and FPR95 of the picture's rows, ranks and ways."""
    shapes = {
        f"{'scaled' if scale else 'unscaled'}, {ridge:g}, {rank}": {
            "method": "SLU", "scale": scale, "rank": rank, "ridge": ridge, "reading": "combined",
        }
        for scale in ("", "diagonal") for ridge in (0.0, 0.01) for rank in ("k/3", "k", "3k")
    }  # fmt: skip
    ways = {name: {**SHOWN["combined (default)"], "reading": name} for name in (
        "variance", "relative", "fisher", "fisher-relative", "combined", "combined + max logit",
        "combined + max logit, whitened")}  # fmt: skip
    studies = _by_study(_found(folder))
    tables = [("auroc", SHOWN), ("fpr95", SHOWN), ("auroc", shapes), ("auroc", ways)]
    return "\n\n".join(_markdown(studies, metric, rows) for metric, rows in tables)


def _markdown(studies: Mapping[str, Sequence[Found]], metric: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Means over outside sets and networks."""
    lines = [f"| {metric} | " + " | ".join(rows) + " |", "|---" * (1 + len(rows)) + "|"]
    for study, networks in studies.items():
        cells = []
        for wanted in rows.values():
            values = [each[metric][0] for found in networks for row in found["rows"] if _is(row, wanted)
                      for each in row["sets"].values()]  # fmt: skip
            cells.append(f"{mean(values):.3f}".lstrip("0") if values else "")
        lines.append(f"| {study} ({len(networks)}) | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _found(folder: Path) -> list[Found]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*-*.json"))]


def _by_study(found: Sequence[Found]) -> dict[str, list[Found]]:
    studies: dict[str, list[Found]] = defaultdict(list)
    for each in found:
        studies[each["study"]].append(each)
    return studies


def _compact(found: Sequence[Found]) -> str:
    """One row a line: short, and one can see what changed."""
    parts = []
    for each in found:
        head = json.dumps({name: value for name, value in each.items() if name != "rows"})
        rows = ",\n".join(json.dumps(row) for row in each["rows"])
        parts.append(f'{head[:-1]}, "rows": [\n{rows}\n]}}')
    return "[" + ",\n".join(parts) + "]\n"


def _picture(found: Sequence[Found], path: Path) -> None:
    """A dot a network: the mean AUROC over its outside sets, by method and study."""
    studies = _by_study(found)
    across = -(-len(studies) // 2)
    figure, grid = plt.subplots(2, across, figsize=(1.9 * across + 1.6, 6.4), sharey=True, sharex=True)
    axes = list(grid.flat)
    names = list(SHOWN)
    for axis in axes[len(studies) :]:
        axis.set_axis_off()
    for axis, (study, networks) in zip(axes, studies.items(), strict=False):
        for place, name in enumerate(names):
            values = [mean_auroc(row) for each in networks for row in each["rows"] if _is(row, SHOWN[name])]
            default = name == names[-1]
            axis.plot(values, [place] * len(values), "o" if default else "s", ms=6 if default else 4,
                      color="C3" if default else "C0" if SHOWN[name]["method"] == "SLU" else "0.4")  # fmt: skip
        axis.set_title(study, fontsize=8)
        axis.set_xlim(0.3, 1.0)
        axis.axvline(0.5, color="0.8", lw=0.8, zorder=0)
        axis.grid(axis="x", color="0.93")
        axis.tick_params(labelsize=7)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[across - 1].tick_params(labelbottom=True)  # nothing may be below it
    figure.supxlabel("mean AUROC over the outside sets, a dot a network", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _is(row: Found, wanted: Mapping[str, Any]) -> bool:
    return row.get("solver", "") != "lanczos" and all(row[name] == value for name, value in wanted.items())
