"""Ways of fitting and querying SLU, judged by the default reading: does a cheaper way lose anything?

"before" measures every output of every query under the exact diagonal and the block SRFT; "new" is the default call.
The others change one thing of "before". All ways of a network see the same points: fitted on `study.fitted`, calibrated
on `study.apart`, judged on every shift.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.evidence.study import Study
from slu import SLU, SluScore
from slu.comparing.bootstrap import Scored, resampled_metrics
from slu.comparing.metrics import METRICS, detect

BEFORE = "before"
LOSS = 0.005
"""Of a study's mean AUROC, more than which a way may not lose."""

RESAMPLES = 1000
Result = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """Settings of `SLU`, and of its calibration and every query; none for the default call."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)


_OLD = {"scale": "diagonal", "sketch": "block_srft"}
_ALL = {"outputs": "all"}
WAYS: dict[str, Way] = {
    BEFORE: Way(_OLD, _ALL),
    "new": Way(),
    "outputs": Way(_OLD, {"outputs": 1}),
    "scale": Way(_OLD | {"scale": "factored"}, _ALL),
    "sketch": Way(_OLD | {"sketch": "kronecker"}, _ALL),
}


def judge_ways(make: Callable[[], Study], path: Path, names: Sequence[str], console: Console) -> Result:
    """The result of one network, from its file or measured now; the file is written anew after each way.

    A way that fails is reported with its error and tried again in the next run; the other ways still run.

    Args:
        make: Makes the study; called only where a way is missing.
        path: Of the network's file.
        names: Of the ways.
        console: Where errors go.
    """
    result: Result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"ways": {}}
    missing = [name for name in names if name not in result["ways"]]
    if not missing:
        return result
    study = make()
    result |= {
        "study": study.name,
        "seed": study.seed,
        "quality": dict(study.quality),
        "points": sum(map(len, study.fitted)),
        "queries": sum(map(len, study.inside)),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in missing:
        console.print(f"[dim]{study.name} {study.seed}: {name}[/dim]")
        try:
            result["ways"][name] = measure(study, WAYS[name])
        except Exception as error:  # a run over many networks goes on
            console.print(f"[red]{study.name} {study.seed}: {name} failed: {type(error).__name__}: {error}[/red]")
            continue
        path.write_text(json.dumps(result) + "\n", encoding="utf-8")
    return result


def measure(study: Study, way: Way) -> Result:
    """The default reading of one way: AUROC by shift, the scores behind it, sizes and seconds."""
    begun = time.perf_counter()
    score = fit(study, way)
    fitted = time.perf_counter() - begun
    sets = {"inside": study.inside, **study.outside}
    scores = {name: score(batches, progress=False, **way.query).double().numpy() for name, batches in sets.items()}
    queried = time.perf_counter() - begun - fitted
    inside = scores["inside"]
    return {
        "reading": score.readings[0],
        "rank": score.settings.rank,
        "size": score.settings.sketch.size,
        "fit seconds": round(fitted, 2),
        "query seconds": round(queried, 2),
        "auroc": {name: detect(inside, scores[name]).auroc for name in study.outside},
        "scores": {name: [float(f"{value:.6g}") for value in values] for name, values in scores.items()},
    }


def fit(study: Study, way: Way) -> SluScore:
    """A score whose calibration points are measured as its queries will be."""
    method = SLU(study.model, study.likelihood, seed=study.seed, **study.settings, **way.settings)
    if not way.query:
        return method.fit(study.fitted, calibration=study.apart, progress=False)
    score = method.fit(study.fitted, calibration=False, progress=False)
    return score.calibrate(study.apart, progress=False, **way.query)


def results(folder: Path) -> list[Result]:
    """All networks of the folder, in the order of their names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*-*.json"))]


def table(found: Sequence[Result]) -> Table:
    """A line per network, and below a study's networks its means: AUROC before, and what each way adds to it."""
    names = [name for name in WAYS if name != BEFORE]
    shown = Table(
        title="Mean AUROC of the default reading over all shifts; difference to before, and its 95 % interval"
    )
    for heading in ("study", "seed", "quality", BEFORE, *names):
        shown.add_column(heading, no_wrap=True)
    for study, networks in by_study(found).items():
        for each in networks:
            quality = ", ".join(f"{name} {value:.3f}" for name, value in each["quality"].items())
            cells = [_cell(each, name) for name in names]
            shown.add_row(study, str(each["seed"]), quality, f"{_mean(each['ways'][BEFORE]):.4f}", *cells)
        differences = [_study_difference(networks, name) for name in names]
        before = mean(_mean(each["ways"][BEFORE]) for each in networks)
        cells = ["" if each is None else f"{each:+.4f}" for each in differences]
        shown.add_row(study, "mean", "", f"{before:.4f}", *cells, style="bold", end_section=True)
    return shown


def losses(found: Sequence[Result]) -> list[str]:
    """A sentence for each study and way whose mean is more than `LOSS` below that of before."""
    return [
        f"{study}: {name} is {-lost:.4f} below before in the mean of {len(networks)} networks"
        for study, networks in by_study(found).items()
        for name in WAYS
        if name != BEFORE and (lost := _study_difference(networks, name)) is not None and lost < -LOSS
    ]


def without_scores(found: Sequence[Result]) -> str:
    """JSON for the documentation, a way per line, with the interval of its difference to before."""
    parts = []
    for each in found:
        head = json.dumps({name: value for name, value in each.items() if name != "ways"})
        lines = []
        for name, way in each["ways"].items():
            kept = {key: value for key, value in way.items() if key != "scores"}
            kept["auroc"] = {shift: round(value, 4) for shift, value in way["auroc"].items()}
            if name != BEFORE and BEFORE in each["ways"]:
                kept["difference"] = [round(value, 4) for value in difference(each, name)]
            lines.append(f"{json.dumps(name)}: {json.dumps(kept)}")
        parts.append(f'{head[:-1]}, "ways": {{\n' + ",\n".join(lines) + "\n}}")
    return "[" + ",\n".join(parts) + "]\n"


def difference(result: Result, name: str) -> tuple[float, float, float]:
    """Mean AUROC of a way minus that of before, and its 95 % interval over resampled points, the same in both."""
    pair = [result["ways"][each] for each in (name, BEFORE)]
    scored = [Scored(*_arrays(each["scores"])) for each in pair]
    place = list(METRICS).index("auroc")
    drawn = [
        np.mean([metrics[place] for metrics in each.values()], axis=0)
        for each in resampled_metrics(scored, count=RESAMPLES, seed=0)
    ]
    low, high = np.quantile(drawn[0] - drawn[1], (0.025, 0.975))
    return _mean(pair[0]) - _mean(pair[1]), float(low), float(high)


def by_study(found: Sequence[Result]) -> dict[str, list[Result]]:
    """The networks of each study that were judged the way they were before."""
    studies: dict[str, list[Result]] = defaultdict(list)
    for each in found:
        if BEFORE in each["ways"]:
            studies[each["study"]].append(each)
    return studies


def report(folder: Path, target: Path | None, console: Console) -> list[str]:
    """Print the table; write ways.json where there is a target; returns the losses."""
    found = results(folder)
    console.print(table(found))
    if target is not None:
        target.mkdir(parents=True, exist_ok=True)
        (target / "ways.json").write_text(without_scores(found), encoding="utf-8")
        console.print(target / "ways.json")
    lost = losses(found)
    console.print(*(lost or [f"no study's mean is more than {LOSS} below before"]), sep="\n")
    return lost


def _cell(result: Result, name: str) -> str:
    if name not in result["ways"]:
        return ""
    value, low, high = difference(result, name)
    return f"{value:+.4f} ({low:+.3f} to {high:+.3f})"


def _study_difference(networks: Sequence[Result], name: str) -> float | None:
    """Over the networks that have the way; None where none has."""
    values = [_mean(each["ways"][name]) - _mean(each["ways"][BEFORE]) for each in networks if name in each["ways"]]
    return mean(values) if values else None


def _mean(way: Result) -> float:
    return mean(way["auroc"].values())


def _arrays(scores: Mapping[str, Sequence[float]]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    arrays = {name: np.asarray(values) for name, values in scores.items()}
    return arrays.pop("inside"), arrays
