"""The run of one candidate: constructed, fitted, scored on every set; a failure affects only its own rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

from slu.comparing.bootstrap import Scored
from slu.comparing.candidates import Candidate, settings_of
from slu.comparing.detectors import Detector
from slu.comparing.evaluation_data import EvaluationData, random_state_kept
from slu.comparing.metrics import checked_scores
from slu.comparing.preflight import check_memory, check_outputs, cost_of, outputs_on, parameters_of, release
from slu.comparing.results import BoardRow, Failure
from slu.core import SLU
from slu.core.protocols import Method, Score
from slu.core.readout import READINGS
from slu.errors import SettingError, SluError, out_of_memory
from slu.gradients import Network

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

ALL = "all"
"""Instead of names of readings: every one that a score has."""


@dataclass(frozen=True)
class Run:
    """A row without metrics, and its scores; None if the row failed."""

    row: BoardRow
    scored: Scored | None = None


def run(candidate: Candidate, data: EvaluationData, readings: Sequence[str] | None, progress: bool | None) -> list[Run]:
    """Construct and fit a method once, and compute its scores on every set.

    Any exception is caught, because a user's method may raise any type, and the rows of the others may
    have taken hours. Its type and message go into the row; unless it is an error of slu or out of memory,
    it is a bug, and its traceback is logged.

    Returns:
        One run for each reading; a single one, without scores, where nothing could be fitted.
    """
    if readings is None:
        readings = [] if candidate.reading is None else [candidate.reading]
    name = candidate.name
    row = empty = BoardRow(name, name)
    try:
        method = tried(name, "being made", candidate.make)
        row = tried(name, "planning its memory", lambda: _described(empty, method, data))
        tried(name, "looking at its outputs", lambda: check_outputs(method))
        cost = row.cost
        if cost is not None:
            tried(name, "planning its memory", lambda: check_memory(method, cost))
        begin = _now()
        score = tried(name, "fitting", lambda: _fitted(method, data, readings, progress))
        row = replace(row, seconds=_now() - begin)
        chosen = tried(name, "naming its readings", lambda: chosen_readings(tuple(score.readings), readings))
    except _Stopped as reason:
        return [Run(replace(row, failure=reason.failure))]
    alone = chosen == [candidate.reading or score.readings[0]]
    rows = [replace(row, label=name if alone else f"{name}, {reading}", reading=reading) for reading in chosen]
    return [_read(each, score, data, progress) for each in rows]


def _fitted(method: Method, data: EvaluationData, readings: Sequence[str], progress: bool | None) -> Score:
    """The score, fitted on all points; SLU holds points out only if a reading needs them."""
    if isinstance(method, Detector):
        return method.fit(data.train, reader=data.reader)
    # If it has none of the requested readings its default is used, which is the combined one.
    calibrated = {name for name, row in READINGS.items() if row.calibrated}
    if isinstance(method, SLU) and {*readings} & {*READINGS} and not {*readings} & {ALL, *calibrated}:
        return method.fit(data.train, calibration=False, progress=progress)
    return method.fit(data.train, progress=progress)


def chosen_readings(available: Sequence[str], asked: Sequence[str]) -> list[str]:
    """Of the readings that a score has: all, or those asked for, and the default where it has none of them.

    >>> chosen_readings(("variance", "fisher"), ["fisher", "entropy"]), chosen_readings(("logit",), ["fisher"])
    (['fisher'], ['logit'])
    """
    if not available:
        raise SettingError("the score names no reading; its `readings` must have at least one, the default first")
    if ALL in asked:
        return list(available)
    return [reading for reading in dict.fromkeys(asked) if reading in available] or [available[0]]


class _Stopped(Exception):
    """A step of a run failed; for this module alone."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure


def tried(name: str, stage: str, work: Callable[[], _Result]) -> _Result:
    """What the work returns. Interrupts are not caught.

    Torch's random state is restored, so that a train loader which shuffles with it gives every method
    the same points in the same order.

    Raises:
        _Stopped: It failed; with the reason.
    """
    try:
        with random_state_kept():
            return work()
    except Exception as reason:
        memory = out_of_memory(reason)
        kind = "OutOfMemoryError" if memory else type(reason).__name__
        failure = Failure(stage, kind, " ".join(str(reason).split()) or "no message")
        if memory or isinstance(reason, SluError):
            _log.info("%s: %s", name, failure)
        else:
            _log.warning("%s: %s", name, failure, exc_info=True)
    if memory:
        # The exception is freed here, and with it the frames that referenced the tensors.
        release()
    raise _Stopped(failure)


def _read(row: BoardRow, score: Score, data: EvaluationData, progress: bool | None) -> Run:
    reading = row.reading
    assert reading is not None
    spent, points = 0.0, 0

    def scores(name: str, on: Any) -> np.ndarray:
        nonlocal spent, points
        begin = _now()
        values = checked_scores(score(on, reading=reading, progress=progress), name)
        spent, points = spent + _now() - begin, points + len(values)
        return values

    try:
        inside = tried(row.label, "scoring the inside points", lambda: scores("inside", data.inside))
    except _Stopped as reason:
        return Run(replace(row, failure=reason.failure))
    outside, failures = {}, {}
    for name, on in data.outside.items():
        try:
            outside[name] = tried(row.label, f"scoring {name!r}", lambda name=name, on=on: scores(name, on))
        except _Stopped as reason:
            failures[name] = reason.failure
    row = replace(row, failures=failures, milliseconds=1000 * spent / points)
    return Run(row, Scored(inside, outside))


def _described(row: BoardRow, method: Method, data: EvaluationData) -> BoardRow:
    """The row with the method's settings and plan, and p and the bytes of a number: the network's, or the model's."""
    outputs, network = None, getattr(method, "network", None)
    if isinstance(network, Network):
        with suppress(Exception):  # if the network cannot be called, the fit raises the reason
            outputs = outputs_on(network, data.examples["inside"]).shape[1]
    parameters, bytes_each, _ = parameters_of(method) or (None, None, None)
    cost = None if isinstance(method, Detector) else cost_of(method, outputs, data)
    return replace(row, settings=settings_of(method), cost=cost, parameters=parameters, bytes_each=bytes_each)


def _now() -> float:
    """Seconds, after all queued GPU work is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()
