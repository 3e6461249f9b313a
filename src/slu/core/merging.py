"""One score of several that were fitted on shards of the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from slu.core.layer_sums import LayerSums
from slu.core.score import SluScore
from slu.core.solvers import Stream
from slu.core.split import merged
from slu.errors import MismatchError, SettingError
from slu.parameters import difference


def merged_score(scores: Iterable[SluScore]) -> SluScore:
    """As `SLU.merge`."""
    given = _checked(scores)
    first = given[0]
    settings, solver = first.settings, first.settings.solver
    if not isinstance(solver, Stream):
        raise SettingError("only scores fitted with solver='stream' can be merged; fit the shards with it")
    for place, score in enumerate(given[1:], 1):
        _check_mergeable(first, score, place)
    state = solver.merged([score.state for score in given], first.sketch, settings.rank, settings.seed)
    layers = LayerSums(settings.network, settings.layers.numbers, settings.seed)
    layers.begin_with(*(score.state.layers for score in given))
    state = dataclasses.replace(state, layers=layers.statistics())
    score = SluScore(settings, first.sketch, state, weights=first.weights)
    calibration = merged([each.state.calibration for each in given], score.read_uncalibrated)
    score.state = dataclasses.replace(state, calibration=calibration)
    return score


def _checked(scores: Any) -> list[SluScore]:
    """The argument of `merge` as a list of fitted scores of SLU."""
    given = list(scores) if isinstance(scores, Iterable) else []
    if not given:
        raise SettingError(f"merge takes several fitted scores, a list of them; got a {type(scores).__name__}")
    for place, score in enumerate(given):
        if not isinstance(score, SluScore):
            raise SettingError(
                f"merge takes fitted scores of SLU, what `fit` returns; at place {place} came a {type(score).__name__}"
            )
    return given


def _check_mergeable(first: SluScore, other: SluScore, place: int) -> None:
    ours, theirs = first.settings.header(), other.settings.header()
    for key in [name for name in ours if name != "scale"]:
        if ours[key] != theirs.get(key):
            raise MismatchError(
                f"score {place} was fitted with {key} {theirs.get(key)!r}, the first with {ours[key]!r}"
            )
    changed = difference(first.weights, other.weights)
    if changed:
        raise MismatchError(f"score {place} was fitted on another network than the first: {changed}")
    if first.scale != other.scale:
        raise MismatchError(
            f"score {place} has another scale than the first, so their directions do not compare; fit one shard as it "
            "is and the others with scale=first.scale, or all with scale=None"
        )
