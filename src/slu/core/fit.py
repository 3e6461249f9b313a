"""From settings and data to a fitted score: hold points out, find the scale, solve, calibrate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from slu.artifacts.checkpoint import Checkpoint, CheckpointedRun
from slu.budgets.memory import explained
from slu.core.calibration import HELD_OUT, CalibrationState, Split, merged, recalibrated, split
from slu.core.score import SluScore
from slu.core.settings import Settings
from slu.core.solvers import Stream
from slu.core.state import FittedState
from slu.core.task import Task
from slu.data import held_out_count
from slu.errors import ChangedDataError, DataError, MismatchError, SettingError
from slu.parameters import difference
from slu.sketches import build


def fit(
    settings: Settings,
    loader: Any,
    *,
    calibration: Any,
    checkpoint: str | Path | Checkpoint | None,
    progress: bool | None,
) -> SluScore:
    """The work of `SLU.fit`, with the same arguments."""
    selection = settings.network.selection
    settings.network.check_weights()
    parts = split(settings.network, loader, calibration, settings.seed)
    run = CheckpointedRun(checkpoint, {} if checkpoint is None else settings.identity(parts.source))
    sketch = build(settings.sketch, device=selection.device, dtype=selection.dtype)
    stored = run.finished()
    if stored is not None:
        score = SluScore(settings, sketch, FittedState.from_file(*stored).on(selection))
        if score.state.calibration.stopped:
            _calibrate(score, _resumed(score, parts, loader, progress), run)
        return score
    parts = parts.prepared()
    with explained("fitting SLU", settings.cost, selection.device):
        state = _solve(settings, settings.task(parts.data, sketch, run, progress))
    state = dataclasses.replace(state, calibration=CalibrationState.while_calibrating(parts.held_out))
    score = SluScore(settings, sketch, state)
    if parts.source is not None:  # a process that is stopped while it calibrates has only that to do again
        run.finish(state.to_file())
    _calibrate(score, parts.calibrated(score.read_all, progress), run)
    return score


def _solve(settings: Settings, task: Task) -> FittedState:
    """The scale, where there is one, and the subspace. They may see other points by augmentation, but not fewer."""
    if settings.scale is None:
        return settings.solver.solve(task)
    scale, seen = task.run.scale(), None
    if scale is None:
        scale, seen = settings.scale.find(task)
    task = dataclasses.replace(task, scale=scale.to(task.network.selection.device))
    task.run.keep_scale(task.scale)
    advice = "Give a loader that can be read again, or scale=None (or factors of your own) for a single pass"
    try:
        state = settings.solver.solve(task)
    except DataError as reason:
        if seen is None:
            raise
        raise type(reason)(f"{reason}. The pass before it, for the scale, read {seen} points. {advice}") from reason
    points = state.points + held_out_count(task.loader)  # which of them are held out may change with their content
    if seen is not None and points != seen:
        raise ChangedDataError(f"the scale is of {seen} points, the subspace of {points}. {advice}")
    return dataclasses.replace(state, passes=state.passes + settings.scale.passes)


def _resumed(score: SluScore, parts: Split, loader: Any, progress: bool | None) -> CalibrationState:
    """The calibration of a fit that was stopped while it calibrated; one pass finds its points again."""
    settings, threshold = score.settings, score.state.calibration.held_out
    if parts.source == HELD_OUT and threshold:
        return recalibrated(
            score.read_all, settings.network, settings.seed, loader,
            threshold=threshold, held_out=True, progress=progress,
        )  # fmt: skip
    return parts.prepared().calibrated(score.read_all, progress)


def _calibrate(score: SluScore, calibration: CalibrationState, run: CheckpointedRun) -> None:
    score.state = dataclasses.replace(score.state, calibration=calibration)
    run.finish(score.state.to_file())


def merge(scores: Iterable[SluScore]) -> SluScore:
    """The work of `SLU.merge`."""
    given = _checked(scores)
    first = given[0]
    settings, solver = first.settings, first.settings.solver
    if not isinstance(solver, Stream):
        raise SettingError("only scores fitted with solver='stream' can be merged; fit the shards with it")
    for place, score in enumerate(given[1:], 1):
        _check_mergeable(first, score, place)
    state = solver.merged([score.state for score in given], first.sketch, settings.rank, settings.seed)
    score = SluScore(settings, first.sketch, state, weights=first.weights)
    calibration = merged([each.state.calibration for each in given], score.read_all)
    score.state = dataclasses.replace(state, calibration=calibration)
    return score


def _checked(scores: Any) -> list[SluScore]:
    """What was given to `merge`, if it is fitted scores of SLU."""
    if not isinstance(scores, Iterable):
        raise SettingError(f"merge takes several fitted scores, a list of them; got a {type(scores).__name__}")
    given = list(scores)
    if not given:
        raise SettingError("there is nothing to merge; give a list of fitted scores")
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
    same = first.scale is other.scale or (
        first.scale is not None and other.scale is not None and torch.equal(first.scale, other.scale)
    )
    if not same:
        raise MismatchError(
            f"score {place} has another scale than the first, so their directions do not compare; fit one shard as it "
            "is and the others with scale=first.scale, or all with scale=None"
        )
