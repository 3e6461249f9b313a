"""What the studies showed: a table in the terminal, and JSON, CSV, a picture and markdown for the documentation."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.table import Table

from benchmarks.evidence import checks
from benchmarks.evidence.candidates import COMPETITOR, DEFAULT, ENSEMBLE, SUMMED, THREE_VIEWS
from benchmarks.evidence.checks import Result, by_study, judging, label
from benchmarks.evidence.picture import draw
from benchmarks.evidence.roles import ROLES

Row = Mapping[str, Any]
_COLUMNS = ("auroc", "low", "high", "fpr95", "fpr95 low", "fpr95 high")

GROUPS: dict[str, tuple[str, ...]] = {
    "images": ("mnist", "fmnist", "cifar10", "digits"),
    "faces": ("celeba",),
    "text": ("text",),
    "tables": ("table",),
    "far": ("far",),
    "regression": ("uci",),
}
"""Kinds of studies by the first word of their names."""


def results(folder: Path) -> list[Result]:
    """Of every network in the folder, in the order of their names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*-*.json"))]


def table(result: Result) -> Table:
    """All rows of one network."""
    quality = ", ".join(f"{name} {value:.3f}" for name, value in result["quality"].items())
    title = f"{result['study']} {result['seed']} ({result['role'] or 'no role'}): {quality}; n = {result['points']}"
    shown = Table(title=title, title_justify="left")
    for heading in ("AUROC", "mean", "cost", *result["shifts"]):
        shown.add_column(heading, overflow="fold")
    for row in result["rows"]:
        numbers = (f"{value:.3f}" for value, _, _ in row["auroc"])
        shown.add_row(label(row), f"{row['mean']:.3f}", "" if row["cost"] is None else f"{row['cost']:.1f}", *numbers)
    for name, error in result["errors"].items():
        shown.add_row(name, error, style="red")
    return shown


def write(folder: Path, target: Path) -> list[Path]:
    """All results of the folder as evidence.json, .csv and .png; returns the three paths."""
    everything = results(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = [target / f"evidence.{ending}" for ending in ("json", "csv", "png")]
    paths[0].write_text(compact(everything), encoding="utf-8")
    with paths[1].open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["study", "seed", "role", "method", "reading", "kind", "shift", *_COLUMNS])
        for each in everything:
            for row in each["rows"]:
                names = (each["study"], each["seed"], each["role"], row["method"], row["reading"], row["kind"])
                for shift, auroc, fpr95 in zip(each["shifts"], row["auroc"], row["fpr95"], strict=True):
                    lines.writerow([*names, shift, *(f"{number:.3f}" for number in (*auroc, *fpr95))])
    draw(everything, paths[2])
    return paths


def compact(everything: Sequence[Result]) -> str:
    """One row per line: short, and one can see what changed. The roles and the checks stand before the networks."""
    head = {
        "roles": ROLES,
        "missing": checks.missing(everything),
        "misses": checks.misses(everything),
        "behind ensembles": checks.behind_ensembles(everything),
    }
    parts = []
    for each in everything:
        network = _json({name: value for name, value in each.items() if name != "rows"})
        parts.append(f'{network[:-1]},"rows":[\n' + ",\n".join(map(_json, each["rows"])) + "\n]}")
    opening = ",\n".join(f"{_json(name)}:{_json(value)}" for name, value in head.items())
    return "{" + opening + ',\n"networks":[\n' + ",\n".join(parts) + "\n]}\n"


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def summary(everything: Sequence[Result]) -> str:
    """Roles, and markdown tables for the documentation, of the networks that judge."""
    judged = judging(everything)
    roles = [
        f"{role}: " + ", ".join(f"{study} {' '.join(map(str, seeds))}" for study, seeds in studies.items())
        for role, studies in ROLES.items()
    ]
    parts = [*roles]
    if judged:
        parts += [_by_study(judged), _by_method(judged), _all(judged, "auroc"), _all(judged, "fpr95")]
    return "\n\n".join(parts)


def _by_study(judged: Sequence[Result]) -> str:
    """A line per study: the default, its worst shift, what it was before, and the best of the others."""
    headings = ("default", "worst shift", "three views", "sum", "best competitor", "best ensemble")
    lines = [_line("AUROC: study (networks)", *headings), _rule(len(headings))]
    for study, networks in by_study(judged).items():
        means = study_means(networks)
        kinds = {label(row): row["kind"] for each in networks for row in each["rows"]}
        default = next((name for name, kind in kinds.items() if kind == DEFAULT), None)
        shifts = shift_means(networks).get(default or "", {})
        worst = min(shifts, key=lambda name: shifts[name], default="")
        before = [means.get(f"SLU before, {name}") for name in (THREE_VIEWS, SUMMED)]
        cells = [_short(means.get(default or "")), f"{_short(shifts.get(worst))} {worst}", *map(_short, before)]
        for kind in (COMPETITOR, ENSEMBLE):
            best = max((name for name in means if kinds[name] == kind), key=lambda name: means[name], default=None)
            cells.append("" if best is None else f"{_short(means[best])} {best}")
        lines.append(_line(f"{study} ({len(networks)})", *cells))
    return "\n".join(lines)


def _by_method(judged: Sequence[Result]) -> str:
    """A line per method: means over kinds of studies, its worst shift of all, and the median of its costs."""
    studies = by_study(judged)
    means = {study: study_means(networks) for study, networks in studies.items()}
    groups = {group: [study for study in studies if study.split("-")[0] in words] for group, words in GROUPS.items()}
    groups = {group: members for group, members in groups.items() if members}
    headings = [f"{group} ({len(members)})" for group, members in groups.items()]
    lines = [_line("AUROC", *headings, "worst shift", "forward passes"), _rule(len(headings) + 2)]
    for name in labels(judged):
        cells = [
            _short(mean(values))
            if (values := [means[study][name] for study in members if name in means[study]])
            else ""
            for members in groups.values()
        ]
        shifts = [
            (value, f"{study}, {shift}")
            for study, networks in studies.items()
            for shift, value in shift_means(networks).get(name, {}).items()
        ]
        worst, where = min(shifts)
        costs = [row["cost"] for each in judged for row in each["rows"] if label(row) == name and row["cost"]]
        lines.append(_line(name, *cells, f"{_short(worst)} {where}", f"{median(costs):.1f}" if costs else ""))
    return "\n".join(lines)


def _all(judged: Sequence[Result], metric: str) -> str:
    """A line per study, a column per method."""
    names = labels(judged)
    lines = [_line(metric.upper(), *names), _rule(len(names))]
    for study, networks in by_study(judged).items():
        means = study_means(networks, metric)
        lines.append(_line(f"{study} ({len(networks)})", *(_short(means.get(name)) for name in names)))
    return "\n".join(lines)


def labels(everything: Sequence[Result]) -> list[str]:
    """The names of all rows, in the order in which they are judged."""
    return list(dict.fromkeys(label(row) for each in everything for row in each["rows"]))


def study_means(networks: Sequence[Result], metric: str = "auroc") -> dict[str, float]:
    """By row the mean over the shifts and networks of a study."""
    return _gathered(networks, lambda _, row: {"all": mean(value for value, _, _ in row[metric])}, "all")


def shift_means(networks: Sequence[Result]) -> dict[str, dict[str, float]]:
    """By row and shift the mean AUROC over the networks of a study."""
    shifts = dict.fromkeys(shift for each in networks for shift in each["shifts"])
    by_shift = {shift: _gathered(networks, checks.areas, shift) for shift in shifts}
    return {
        name: {shift: means[name] for shift, means in by_shift.items() if name in means} for name in labels(networks)
    }


def _gathered(
    networks: Sequence[Result], value: Callable[[Result, Row], Mapping[str, float]], key: str
) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for each in networks:
        for row in each["rows"]:
            values.setdefault(label(row), []).append(value(each, row)[key])
    return {name: mean(numbers) for name, numbers in values.items()}


def _short(value: float | None) -> str:
    """Three decimals, without the zero before them."""
    return "" if value is None else f"{value:.3f}".removeprefix("0")


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _rule(columns: int) -> str:
    return "|---" * (1 + columns) + "|"
