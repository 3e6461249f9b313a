"""Ways of fitting and querying SLU, judged by the default reading: does a cheaper way lose anything?

"before" measures every output of every query under the exact diagonal and the block SRFT; "new" is the default call.
The others change one thing of "before". All ways of a network see the same points: fitted on `study.fitted`, calibrated
on `study.apart`, judged on every shift. On small networks the draw of the sketch alone moves the mean AUROC by 0.01, so
a way may be fitted several times, and its AUROC is the mean over these draws.
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
from slu.core.resolve import LEAST_FLOATS

BEFORE, NEW = "before", "new"
LOSS = 0.005
"""Of a study's mean AUROC, more than which a way may not lose."""

RESAMPLES = 1000
Result = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """Settings of `SLU`, and of its calibration and every query; none for the default call."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)


_OLD = {"scale": "diagonal", "sketch": "block_srft", "budget": "3p"}
_ALL = {"outputs": "all"}
WAYS: dict[str, Way] = {
    BEFORE: Way(_OLD, _ALL),
    NEW: Way(),
    "outputs": Way(_OLD, {"outputs": 1}),
    "scale": Way(_OLD | {"scale": "factored"}, _ALL),
    "sketch": Way(_OLD | {"sketch": "kronecker"}, _ALL),
}


def judge_ways(make: Callable[[], Study], path: Path, names: Sequence[str], draws: int, console: Console) -> None:
    """Measure what the file of a network lacks; it is written anew after each fit.

    A way that fails is reported with its error and tried again in the next run; the other ways still run.

    Args:
        make: Makes the study; called only where a result is missing.
        path: Of the network's file.
        names: Of the ways.
        draws: Fits of each way.
        console: Where errors go.
    """
    result: Result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"ways": {}}
    missing = [(name, draw) for draw in range(draws) for name in names if len(result["ways"].get(name, [])) <= draw]
    if not missing:
        return
    study = make()
    result |= {
        "study": study.name,
        "seed": study.seed,
        "quality": dict(study.quality),
        "points": sum(map(len, study.fitted)),
        "queries": sum(map(len, study.inside)),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, draw in missing:
        console.print(f"[dim]{study.name} {study.seed}: {name}, draw {draw}[/dim]")
        try:
            measured = measure(study, WAYS[name], study.seed + 1000 * draw)
        except Exception as error:  # a run over many networks goes on
            console.print(f"[red]{study.name} {study.seed}: {name} failed: {type(error).__name__}: {error}[/red]")
            continue
        result["ways"].setdefault(name, []).append(measured)
        path.write_text(json.dumps(result) + "\n", encoding="utf-8")


def measure(study: Study, way: Way, seed: int) -> Result:
    """The default reading of one way and draw: AUROC by shift, the scores behind it, sizes and seconds."""
    begun = time.perf_counter()
    score = fit(study, way, seed)
    fitted = time.perf_counter() - begun
    sets = {"inside": study.inside, **study.outside}
    scores = {name: score(batches, progress=False, **way.query).double().numpy() for name, batches in sets.items()}
    queried = time.perf_counter() - begun - fitted
    inside = scores["inside"]
    return {
        "seed": seed,
        "reading": score.readings[0],
        "rank": score.settings.rank,
        "size": score.settings.sketch.size,
        "fit seconds": round(fitted, 2),
        "query seconds": round(queried, 2),
        "auroc": {name: round(detect(inside, scores[name]).auroc, 6) for name in study.outside},
        "scores": {name: [float(f"{value:.6g}") for value in values] for name, values in scores.items()},
    }


def fit(study: Study, way: Way, seed: int) -> SluScore:
    """A score whose calibration points are measured as its queries will be."""
    settings = {**study.settings, **way.settings}
    if "budget" in settings:  # what the default was before it had an upper limit
        parameters = SLU(study.model, study.likelihood, rank=1, **study.settings).network.selection.count
        settings["budget"] = max(3 * parameters, LEAST_FLOATS)
    method = SLU(study.model, study.likelihood, seed=seed, **settings)
    if not way.query:
        return method.fit(study.fitted, calibration=study.apart, progress=False)
    score = method.fit(study.fitted, calibration=False, progress=False)
    return score.calibrate(study.apart, progress=False, **way.query)


def report(folder: Path, target: Path | None, console: Console) -> list[str]:
    """Print the table, write ways.json where there is a target, and return what is lost or missing."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*-*.json"))]
    console.print(table(results))
    if target is not None:
        target.mkdir(parents=True, exist_ok=True)
        (target / "ways.json").write_text(without_scores(results), encoding="utf-8")
        console.print(target / "ways.json")
    lost = losses(results)
    networks = f"{len(results)} networks of {len(by_study(results))} studies"
    console.print(*(lost or [f"{networks}: no study's mean is more than {LOSS} below before"]), sep="\n")
    return lost


def table(results: Sequence[Result]) -> Table:
    """A line per network, and below a study's networks its means: AUROC before, and what each way adds to it."""
    names = [name for name in WAYS if name != BEFORE]
    title = "Mean AUROC of the default reading over shifts and draws; difference to before, half of its 95 % interval"
    shown = Table(title=title)
    for heading in ("study", "seed", "quality", "draws", BEFORE, *names):
        shown.add_column(heading, no_wrap=True)
    for study, networks in by_study(results).items():
        for each in networks:
            quality = " ".join(f"{value:.3f}" for value in each["quality"].values())
            draws = str(min(map(len, each["ways"].values())))
            cells = [_cell(each, name) for name in names]
            shown.add_row(study, str(each["seed"]), quality, draws, f"{mean_auroc(each, BEFORE):.4f}", *cells)
        differences = [study_difference(networks, name) for name in names]
        before = mean(mean_auroc(each, BEFORE) for each in networks)
        cells = ["" if each is None else f"{each:+.4f}" for each in differences]
        shown.add_row(study, "mean", "", "", f"{before:.4f}", *cells, style="bold", end_section=True)
    return shown


def losses(results: Sequence[Result]) -> list[str]:
    """A sentence for each study and way whose mean is more than `LOSS` below that of before, and for missing ones.

    Only the default call and what it is compared with must have been measured; the other ways find a cause.
    """
    unknown = [
        f"{each['study']} {each['seed']}: not measured: {', '.join(missing)}"
        for each in results
        if (missing := [name for name in (BEFORE, NEW) if name not in each["ways"]])
    ]
    return unknown + [
        f"{study}: {name} is {-lost:.4f} below before in the mean of {len(networks)} networks"
        for study, networks in by_study(results).items()
        for name in WAYS
        if name != BEFORE and (lost := study_difference(networks, name)) is not None and lost < -LOSS
    ]


def without_scores(results: Sequence[Result]) -> str:
    """JSON for the documentation, a fit per line, with each way's difference to before."""
    parts = []
    for each in results:
        head = {name: value for name, value in each.items() if name != "ways"}
        if BEFORE in each["ways"]:
            names = [name for name in each["ways"] if name != BEFORE]
            head["differences"] = {name: [round(value, 4) for value in difference(each, name)] for name in names}
        lines = [
            json.dumps({"way": name} | {key: value for key, value in fitted.items() if key != "scores"})
            for name, fits in each["ways"].items()
            for fitted in fits
        ]
        parts.append(f'{json.dumps(head)[:-1]}, "fits": [\n' + ",\n".join(lines) + "\n]}")
    return "[" + ",\n".join(parts) + "]\n"


def difference(result: Result, name: str) -> tuple[float, float, float]:
    """Mean AUROC of a way minus that of before, and its 95 % interval over resampled points, the same in all fits."""
    of_way, of_before = result["ways"][name], result["ways"][BEFORE]
    place = list(METRICS).index("auroc")
    drawn = [
        np.mean([metrics[place] for metrics in each.values()], axis=0)
        for each in resampled_metrics([_scored(each) for each in of_way + of_before], count=RESAMPLES, seed=0)
    ]
    resampled = np.mean(drawn[: len(of_way)], axis=0) - np.mean(drawn[len(of_way) :], axis=0)
    low, high = np.quantile(resampled, (0.025, 0.975))
    return mean_auroc(result, name) - mean_auroc(result, BEFORE), float(low), float(high)


def by_study(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The networks of each study of which "before" was measured."""
    studies: dict[str, list[Result]] = defaultdict(list)
    for each in results:
        if BEFORE in each["ways"]:
            studies[each["study"]].append(each)
    return studies


def study_difference(networks: Sequence[Result], name: str) -> float | None:
    """Over the networks that have the way; None where none has."""
    values = [mean_auroc(each, name) - mean_auroc(each, BEFORE) for each in networks if name in each["ways"]]
    return mean(values) if values else None


def mean_auroc(result: Result, name: str) -> float:
    """Of a network and way, over shifts and draws."""
    return mean(value for fitted in result["ways"][name] for value in fitted["auroc"].values())


def _cell(result: Result, name: str) -> str:
    if name not in result["ways"]:
        return ""
    value, low, high = difference(result, name)
    return f"{value:+.4f} ± {(high - low) / 2:.4f}"


def _scored(fitted: Result) -> Scored:
    arrays = {name: np.asarray(values) for name, values in fitted["scores"].items()}
    return Scored(arrays.pop("inside"), arrays)
