"""Every candidate judged on every shift of a study: its scores, how well they detect, and what a query costs.

A network has two files in the folder of the evidence: STUDY-SEED.json with what was measured, and
scores/STUDY-SEED.npz with the raw scores, from which another table can be made without fitting anything again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch

from benchmarks.evidence.candidates import Fitted, candidates
from benchmarks.evidence.roles import role_of
from benchmarks.evidence.study import Study
from slu.comparing.bootstrap import Judgement, Scored, judge_all

APART, INSIDE = "apart", "inside"
RESAMPLES = 500
METRICS = ("auroc", "fpr95")
TIMINGS = 5
"""Of a query and of a forward pass each, of which the medians are compared."""

Log = Callable[[str], object]
Result = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A score by name; for the kinds see `candidates`."""

    method: str
    reading: str
    kind: str


Raw = dict[Row, dict[str, np.ndarray]]


@dataclass(frozen=True)
class Stored:
    """Rows of a network that was judged before: their raw scores and costs; and errors of other readings."""

    raw: Raw
    costs: Mapping[Row, float | None]
    errors: Mapping[str, str]


def judge_study(
    study: Study, *, cost: bool, ensembles: bool, log: Log, stored: Stored | None = None
) -> tuple[Result, Raw]:
    """Fit and judge every candidate; one that fails is reported with its error, and the others go on.

    Args:
        study: The network and its data.
        cost: Whether queries are timed; beside other work the times mean nothing.
        ensembles: Whether there is an ensemble, for which networks may have to be trained.
        log: Takes a line for every candidate.
        stored: Rows of an earlier run on the same data; their methods are not fitted again.

    Returns:
        What the file of the network has, and the raw scores {row: {set: scores}}, where the sets are those of the
        shifts and "apart" and "inside".
    """
    sets = {APART: study.apart, INSIDE: study.inside, **study.outside}
    raw: Raw = {} if stored is None else dict(stored.raw)
    costs: dict[Row, float | None] = {} if stored is None else dict(stored.costs)
    _check_sizes(raw, {name: sum(map(len, batches)) for name, batches in sets.items()})
    errors: dict[str, str] = {} if stored is None else dict(stored.errors)
    done = {row.method for row in raw}
    for candidate in candidates(study, ensembles=ensembles):
        if candidate.method in done:
            continue
        begun = time.perf_counter()
        try:
            fitted = candidate.fit()
            fit_seconds = time.perf_counter() - begun
            rows = {reading: Row(candidate.method, reading, kind) for reading, kind in fitted.kinds.items()}
            scores = {name: fitted.read(batches) for name, batches in sets.items()}
            costs |= _costs(study, fitted, rows) if cost else {}
        except Exception as error:  # a run over many networks goes on
            errors[candidate.method] = f"{type(error).__name__}: {error}"
            log(f"{candidate.method} failed: {errors[candidate.method]}")
            continue
        for reading, row in rows.items():
            values = {name: np.asarray(each[reading].double()) for name, each in scores.items()}
            if any(np.isnan(each).any() for each in values.values()):
                errors[f"{row.method}, {reading}"] = "some scores are NaN"
            else:
                raw[row] = values
        log(f"{candidate.method}: fit {fit_seconds:.1f} s, all {time.perf_counter() - begun:.1f} s")
    head = {
        "study": study.name,
        "seed": study.seed,
        "role": role_of(study.name, study.seed),
        "quality": {name: round(value, 4) for name, value in study.quality.items()},
        "points": sum(map(len, study.fitted)),
        "queries": sum(map(len, study.inside)),
        "shifts": list(study.outside),
    }
    methods = [candidate.method for candidate in candidates(study)]
    raw = dict(sorted(raw.items(), key=lambda item: methods.index(item[0].method)))  # kept rows came first
    return head | {"errors": errors, "rows": _judged(raw, list(study.outside), costs)}, raw


def _check_sizes(raw: Raw, sizes: Mapping[str, int]) -> None:
    """Refuse scores of other points."""
    for row, scores in raw.items():
        if {name: len(values) for name, values in scores.items()} != sizes:
            raise ValueError(f"the stored scores of {row.method} are of other sets or points; judge the network anew")


def _judged(raw: Raw, shifts: Sequence[str], costs: Mapping[Row, float | None]) -> list[Result]:
    """For each row the metrics of the shifts in their order, [value, low, high] each, and what they come to."""
    scored = [Scored(sets[INSIDE], {name: sets[name] for name in shifts}) for sets in raw.values()]
    judgements, _ = judge_all(scored, resamples=RESAMPLES, seed=0)
    rows = []
    for row, judged in zip(raw, judgements, strict=True):
        areas = {name: judged[name].auroc.value for name in shifts}
        worst = min(areas, key=lambda name: areas[name])
        metrics = {metric: [_numbers(judged[name], metric) for name in shifts] for metric in METRICS}
        summary = {"mean": round(mean(areas.values()), 4), "worst": worst, "cost": costs.get(row)}
        rows.append(asdict(row) | summary | metrics)
    return rows


def _numbers(judgement: Judgement, metric: str) -> list[float]:
    return [round(value, 4) for value in asdict(getattr(judgement, metric)).values()]


def fill_costs(study: Study, result: Result, *, ensembles: bool, log: Log) -> Result:
    """The result with the cost of every row that it has; every candidate is fitted again, and nothing else changes."""
    costs: dict[tuple[str, str], float] = {}
    for candidate in candidates(study, ensembles=ensembles):
        try:
            fitted = candidate.fit()
            rows = {reading: Row(candidate.method, reading, kind) for reading, kind in fitted.kinds.items()}
            costs |= {(row.method, row.reading): value for row, value in _costs(study, fitted, rows).items()}
        except Exception as error:
            log(f"{candidate.method} failed: {type(error).__name__}: {error}")
    return result | {
        "rows": [row | {"cost": costs.get((row["method"], row["reading"]), row["cost"])} for row in result["rows"]]
    }


def _costs(study: Study, fitted: Fitted, rows: Mapping[str, Row]) -> dict[Row, float]:
    """By row: what a call for one batch takes, in forward passes of the same batch, by one thread."""
    if fitted.call is None:
        return {}
    batch, call = study.inside[0], fitted.call

    @torch.no_grad()
    def forward() -> None:
        study.model(batch)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {row: _ratio(lambda name=reading: call(batch, name), forward) for reading, row in rows.items()}
    finally:
        torch.set_num_threads(threads)


def _ratio(query: Callable[[], object], forward: Callable[[], object]) -> float:
    """Of the medians of timings taken in turn, after one call of each that does not count."""
    timings: dict[Callable[[], object], list[float]] = {query: [], forward: []}
    for _ in range(TIMINGS + 1):
        for function, seconds in timings.items():
            begun = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - begun)
    return round(median(timings[query][1:]) / median(timings[forward][1:]), 2)


def store(result: Result, raw: Raw | None, folder: Path) -> None:
    """Write the files of a network: the scores first, for a network with a result is not judged again."""
    name = f"{result['study']}-{result['seed']}"
    if raw is not None:
        (folder / "scores").mkdir(parents=True, exist_ok=True)
        arrays = {_key(row, part): each for row, sets in raw.items() for part, each in sets.items()}
        np.savez_compressed(folder / "scores" / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    (folder / f"{name}.json").write_text(json.dumps(result) + "\n", encoding="utf-8")


def read_stored(path: Path, again: Sequence[str]) -> Stored:
    """What is kept of a network that is judged again: the rows of all methods but some.

    Args:
        path: Of its result.
        again: First words of the methods that are fitted again: "SLU" stands for "SLU before" as well.
    """
    result = json.loads(path.read_text(encoding="utf-8"))
    rows = {Row(row["method"], row["reading"], row["kind"]): row["cost"] for row in result["rows"]}
    kept = {row: cost for row, cost in rows.items() if row.method.split()[0] not in again}
    methods = {row.method for row in kept}
    errors = {name: error for name, error in result["errors"].items() if name.split(", ")[0] in methods}
    sets = [APART, INSIDE, *result["shifts"]]
    with np.load(path.parent / "scores" / f"{path.stem}.npz") as arrays:
        return Stored({row: {name: arrays[_key(row, name)] for name in sets} for row in kept}, kept, errors)


def _key(row: Row, part: str) -> str:
    return f"{row.method}/{row.reading}/{part}"
