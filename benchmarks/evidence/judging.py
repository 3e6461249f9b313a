"""Every score of one study: SLU scaled and not, at three ranks, with and without a ridge, by every reading, and others.

Letters: k the rank that the planner chooses for SLU's default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.evidence.seen import Seen, read, see
from benchmarks.evidence.study import Study
from slu import SLU, DeepEnsemble, DiagonalLaplace, Energy, Entropy, MaxLogit
from slu.comparing.bootstrap import Scored, judge_all
from slu.core.readout import COMBINED, Standard
from slu.core.scaling import Scaling

RIDGES = (0.0, 0.01)
SHARES = {"k/3": 1 / 3, "k": 1.0, "3k": 3.0}
RESAMPLES = 500
Columns = Mapping[str, Tensor]


@dataclass(frozen=True)
class Row:
    """A score by name: method, and for SLU the scale, the rank, the ridge and the solver; then the reading."""

    method: str
    reading: str
    scale: str = ""
    rank: str = ""
    ridge: float | None = None
    solver: str = ""


def judge_study(study: Study, *, lanczos: bool = False) -> dict[str, Any]:
    """{"quality", "rank", "size", "rows": [{"method", …, "sets": {shift: {metric: [value, low, high]}}}]}."""
    shape = SLU(study.model, study.likelihood, **study.settings)
    rows: dict[Row, Scored] = dict(_others(study))
    seconds: dict[str, float] = {}
    for row, scored, took in _of_slu(study, shape.rank, shape.settings.sketch.size, lanczos):
        rows[row] = scored
        seconds[f"{row.solver}, {row.scale or 'unscaled'}, {row.rank}"] = round(took, 2)
    judged, _ = judge_all(list(rows.values()), resamples=RESAMPLES, seed=0)
    return {
        "study": study.name,
        "seed": study.seed,
        "quality": dict(study.quality),
        "points": sum(map(len, study.fitted)),
        "queries": sum(map(len, study.inside)),
        "rank": shape.rank,
        "size": shape.settings.sketch.size,
        "seconds": seconds,
        "rows": [
            {**asdict(row), "sets": {name: _numbers(each) for name, each in found.items()}}
            for row, found in zip(rows, judged, strict=True)
        ],
    }


def _numbers(judgement: Any) -> dict[str, list[float]]:
    return {
        name: [round(value, 4) for value in asdict(getattr(judgement, name)).values()] for name in ("auroc", "fpr95")
    }


def _of_slu(study: Study, rank: int, size: int, lanczos: bool) -> Iterator[tuple[Row, Scored, float]]:
    for scale in (None, "diagonal"):
        seen: dict[str, Seen] = {}
        shared: Scaling | None = None  # the scale of all fits
        most = sum(map(len, study.fitted))  # one gradient a point
        ranks = {label: min(max(1, round(share * rank)), most) for label, share in SHARES.items()}
        fits = [("stream", label, wanted) for label, wanted in ranks.items()]
        for solver, label, wanted in [*fits, ("lanczos", "k", rank)] if lanczos else fits:
            # The shift sketch is as accurate on gradients as the default, and costs a tenth.
            settings = {"rank": wanted, "sketch_size": size, "sketch": "shift", "ridge": 0.0, "solver": solver}
            chosen = scale if shared is None else shared
            method = SLU(study.model, study.likelihood, seed=study.seed, scale=chosen, **settings, **study.settings)
            score = method.fit(study.fitted, calibration=False, progress=False)
            shared = score.scale
            if not seen:
                sets = {"apart": study.apart, "inside": study.inside, **study.outside}
                seen = {name: see(score, batches) for name, batches in sets.items()}
            for ridge in RIDGES:
                values = {name: read(score, score.state.subspace, ridge, each) for name, each in seen.items()}
                ways = combined(values, seen if study.likelihood == "classification" else None)
                for reading, of_sets in ways.items():
                    row = Row("SLU", reading, scale or "", label, ridge, solver)
                    yield row, _scored(of_sets), score.diagnostics.seconds


SUMMED = "sum of fisher and fisher-relative"
"""The combined reading as it was before it became a soft maximum, for comparison."""


def combined(scores: Mapping[str, Columns], seen: Mapping[str, Seen] | None) -> dict[str, dict[str, Tensor]]:
    """{reading: {set: scores}}: single readings, the combined one, and the sum that it replaced.

    Args:
        scores: By set and reading; the set "apart" standardizes.
        seen: For classifiers, whose outputs give one more view.
    """
    columns = {part: dict(each) for part, each in scores.items()}
    for part, each in (seen or {}).items():
        columns[part]["max-logit"] = -each.outputs.double().amax(1)
    ways = {name: {part: each[name] for part, each in columns.items()} for name in columns["apart"]}
    standard = Standard.of(columns["apart"])
    ways[COMBINED] = {part: standard.soft_maximum(each) for part, each in columns.items()}
    ways[SUMMED] = {
        part: sum((standard.scales[name](each[name]) for name in ("fisher", "fisher-relative")), torch.zeros(()))
        for part, each in columns.items()
    }
    return ways


def _others(study: Study) -> Iterator[tuple[Row, Scored]]:
    """Methods to compare with: of the outputs, the diagonal Laplace approximation, an ensemble."""
    sets = {"inside": study.inside, **study.outside}
    if study.likelihood == "classification":
        for kind in (MaxLogit, Energy, Entropy):
            score = kind(study.model).fit(study.inside)
            yield (
                Row(kind.__name__, score.readings[0]),
                _scored({name: score(each, progress=False) for name, each in sets.items()}),
            )
    laplace = DiagonalLaplace(study.model, study.likelihood, **study.settings).fit(study.fitted, progress=False)
    for reading in ("variance", "fisher"):
        found = {name: laplace(each, reading=reading, progress=False) for name, each in sets.items()}
        yield Row("DiagonalLaplace", reading), _scored(found)
    if members := study.members():
        ensemble = DeepEnsemble([study.model, *members], study.likelihood).fit()
        for reading in ensemble.readings:
            found = {name: ensemble(each, reading=reading, progress=False) for name, each in sets.items()}
            yield Row("DeepEnsemble", reading), _scored(found)


def _scored(values: Mapping[str, Tensor]) -> Scored:
    arrays = {name: np.asarray(each.double()) for name, each in values.items() if name != "apart"}
    return Scored(arrays.pop("inside"), arrays)
