"""Every score of one study: SLU scaled and not, at three ranks, with and without a ridge, by every reading, and others.

Letters: k the rank that the planner chooses for SLU's default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.evidence.seen import Seen, read, see
from benchmarks.evidence.study import Study
from slu import SLU, Calibration, DeepEnsemble, DiagonalLaplace, Energy, Entropy, MaxLogit
from slu.comparing.bootstrap import Scored, judge_all
from slu.core.calibration import COMBINED, COORDINATES

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
    for row, scored, took in _of_slu(study, shape.rank, shape.sketch.size, lanczos):
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
        "size": shape.sketch.size,
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
        found: Tensor | None = None  # the factors of the scale, which all fits share
        most = sum(map(len, study.fitted))  # one gradient a point
        ranks = {label: min(max(1, round(share * rank)), most) for label, share in SHARES.items()}
        fits = [("stream", label, wanted) for label, wanted in ranks.items()]
        for solver, label, wanted in [*fits, ("lanczos", "k", rank)] if lanczos else fits:
            # The shift sketch is as accurate on gradients as the default, and costs a tenth.
            settings = {"rank": wanted, "sketch_size": size, "sketch": "shift", "ridge": 0.0, "solver": solver}
            chosen = scale if found is None else found
            method = SLU(study.model, study.likelihood, seed=study.seed, scale=chosen, **settings, **study.settings)
            score = method.fit(study.fitted, calibration=False, progress=False)
            found = score.scale
            if not seen:
                sets = {"apart": study.apart, "inside": study.inside, **study.outside}
                seen = {name: see(score, batches) for name, batches in sets.items()}
            for ridge in RIDGES:
                values = {name: read(score, score.subspace, ridge, each) for name, each in seen.items()}
                ways = combined(values, seen if study.likelihood == "classification" else None)
                for reading, of_sets in ways.items():
                    row = Row("SLU", reading, scale or "", label, ridge, solver)
                    yield row, _scored(of_sets), score.diagnostics.seconds


def combined(found: Mapping[str, Columns], seen: Mapping[str, Seen] | None) -> dict[str, dict[str, Tensor]]:
    """{reading: {set: scores}}: single readings, the combined one, and other ways to combine.

    Args:
        found: Scores by set and reading; the set "apart" standardizes.
        seen: For classifiers, whose outputs give a third coordinate.
    """
    names = list(found["apart"])
    ways = {name: {part: columns[name] for part, columns in found.items()} for name in names}
    standard = Calibration.of(found["apart"], "given").standard
    ways[COMBINED] = {part: standard(columns) for part, columns in found.items()}
    logs = {part: [columns[name].double().clamp(min=1e-300).log() for name in COORDINATES]
            for part, columns in found.items()}  # fmt: skip
    # Two standardized columns made uncorrelated have the same sum, up to a factor; three have not.
    if seen is not None:
        third = {part: [*logs[part], -each.outputs.double().amax(1)] for part, each in seen.items()}
        ways["combined + max logit"] = _added(third, whiten=False)
        ways["combined + max logit, whitened"] = _added(third, whiten=True)
    return ways


def _added(columns: Mapping[str, Sequence[Tensor]], *, whiten: bool) -> dict[str, Tensor]:
    """Sums of standardized columns; whitened, after they were made uncorrelated on calibration points."""
    known = torch.stack(list(columns["apart"]))
    means, deviations = known.mean(1, keepdim=True), known.std(1, keepdim=True).clamp(min=1e-12)
    weights = torch.ones(len(known), dtype=known.dtype)
    if whiten:
        values, vectors = torch.linalg.eigh(torch.cov((known - means) / deviations))
        weights = ((vectors * values.clamp(min=1e-6).rsqrt()) @ vectors.T).sum(0)
    return {part: weights @ ((torch.stack(list(each)) - means) / deviations) for part, each in columns.items()}


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
    if study.members:
        ensemble = DeepEnsemble([study.model, *study.members], study.likelihood).fit()
        for reading in ensemble.readings:
            found = {name: ensemble(each, reading=reading, progress=False) for name, each in sets.items()}
            yield Row("DeepEnsemble", reading), _scored(found)


def _scored(values: Mapping[str, Tensor]) -> Scored:
    arrays = {name: np.asarray(each.double()) for name, each in values.items() if name != "apart"}
    return Scored(arrays.pop("inside"), arrays)
