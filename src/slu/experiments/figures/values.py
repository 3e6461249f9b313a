"""Numbers out of score runs, for figures."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

from slu.experiments.data import expand
from slu.experiments.figures.style import middle
from slu.experiments.results import Result


def auroc(result: Result, family: str) -> float | None:
    """The mean over a family's sets; None where none of them was scored."""
    judged = result.metrics["judgements"]
    found = [judged[name]["auroc"]["value"] for name in expand([family]) if name in judged]
    return mean(found) if found else None


def curve(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float], list[float]]:
    """Places, means and standard deviations over networks, from (place, value) pairs; in rising order."""
    found: dict[float, list[float]] = {}
    for place, value in points:
        found.setdefault(place, []).append(value)
    places = sorted(found)
    middles = [middle(found[place]) for place in places]
    return places, [each for each, _ in middles], [spread for _, spread in middles]


def named(family: str) -> str:
    """A family as it is written over a panel."""
    count = len(expand([family]))
    return f"{family} (mean of {count})" if count > 1 else family
