"""What is claimed of the default, checked on the networks that judge.

1. On the mean AUROC of a study, over its shifts and networks, the default is not more than 0.01 below any competitor.
2. On no shift of a study, in the mean of its networks, is the default below 0.6 where a competitor has 0.7.

Competitors are all methods but SLU that need the trained network and data alone. Ensembles need further trainings:
where the default is below one, that is listed apart, and is no miss. A competitor is compared on the networks that it
has scores of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.evidence.candidates import BEFORE, COMPETITOR, DEFAULT, ENSEMBLE, READING
from benchmarks.evidence.roles import JUDGE
from benchmarks.evidence.roles import networks as networks_of

MARGIN = 0.01
LOW, HIGH = 0.6, 0.7

Result = Mapping[str, Any]
Areas = dict[str, float]
"""AUROC by shift."""


def label(row: Mapping[str, Any]) -> str:
    """What a row is called in tables and pictures."""
    method, reading, kind = row["method"], row["reading"], row["kind"]
    if kind == DEFAULT:
        return f"SLU, default ({reading})"
    if kind in (READING, BEFORE):
        return f"{method}, {reading}"
    if kind == ENSEMBLE or method == "DiagonalLaplace":
        return f"{method}, {reading}"
    return method


def judging(results: Sequence[Result]) -> list[Result]:
    """The networks that judge."""
    return [each for each in results if each["role"] == JUDGE]


def by_study(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The networks of each study."""
    studies: dict[str, list[Result]] = defaultdict(list)
    for each in results:
        studies[each["study"]].append(each)
    return dict(studies)


def missing(results: Sequence[Result]) -> list[str]:
    """A sentence for every network that should judge and does not."""
    there = {(each["study"], each["seed"]): each for each in results}
    sentences = []
    for study, seed in networks_of([JUDGE]):
        if (study, seed) not in there:
            sentences.append(f"{study} {seed}: not judged yet")
        elif _row(there[study, seed], DEFAULT) is None:
            sentences.append(f"{study} {seed}: the default has no scores: {there[study, seed]['errors']}")
    return sentences


def misses(results: Sequence[Result]) -> list[str]:
    """A sentence for every study and every shift on which the default loses to a competitor."""
    judged = judging(results)
    return [*_losses_on_means(judged, COMPETITOR), *_losses_on_shifts(judged, COMPETITOR)]


def behind_ensembles(results: Sequence[Result]) -> list[str]:
    """The same for ensembles, which need further trainings."""
    judged = judging(results)
    return [*_losses_on_means(judged, ENSEMBLE), *_losses_on_shifts(judged, ENSEMBLE)]


def _losses_on_means(results: Sequence[Result], kind: str) -> Iterator[str]:
    for study, networks in by_study(results).items():
        differences = {
            name: (mean(mean(other.values()) for _, other in pairs), mean(mean(own.values()) for own, _ in pairs))
            for name, pairs in _pairs(networks, kind).items()
        }
        if not differences:
            continue
        name, (best, own) = max(differences.items(), key=lambda item: item[1][0] - item[1][1])
        if round(best - own, 6) > MARGIN:
            yield f"{study}: the default has a mean AUROC of {own:.3f}, {best - own:.3f} below {name} ({best:.3f})"


def _losses_on_shifts(results: Sequence[Result], kind: str) -> Iterator[str]:
    for study, networks in by_study(results).items():
        shifts: dict[str, list[tuple[float, str, float]]] = defaultdict(list)
        for name, pairs in _pairs(networks, kind).items():
            for shift in pairs[0][0]:
                own, best = (mean(pair[place][shift] for pair in pairs) for place in (0, 1))
                if own < LOW and best >= HIGH:
                    shifts[shift].append((best, name, own))
        for shift, losses in shifts.items():
            best, name, own = max(losses)
            yield f"{study}, {shift}: the default has an AUROC of {own:.3f}, {name} {best:.3f}"


def _pairs(networks: Sequence[Result], kind: str) -> dict[str, list[tuple[Areas, Areas]]]:
    """For each method of a kind the AUROC of the default and its own, of every network that has both."""
    pairs: dict[str, list[tuple[Areas, Areas]]] = defaultdict(list)
    for network in networks:
        default = _row(network, DEFAULT)
        if default is None:
            continue
        for row in network["rows"]:
            if row["kind"] == kind:
                pairs[label(row)].append((areas(network, default), areas(network, row)))
    return pairs


def areas(network: Result, row: Mapping[str, Any]) -> Areas:
    """The AUROC of a row by shift."""
    return {shift: numbers[0] for shift, numbers in zip(network["shifts"], row["auroc"], strict=True)}


def _row(network: Result, kind: str) -> Mapping[str, Any] | None:
    return next((row for row in network["rows"] if row["kind"] == kind), None)
