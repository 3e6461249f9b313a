"""Runs on one network: gradients of the queries are formed once for all methods that read them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import torch

from slu.comparing import Scored, checked_scores, read_shared
from slu.errors import SluError
from slu_experiments.building import members_of
from slu_experiments.points import QUERY_BATCH, Batches
from slu_experiments.results import Result
from slu_experiments.running import Fitted, Networks, Place, Run, dataset_of, execute, networks, queries_of
from slu_experiments.settings import find_setting

READING = "variance"
"""Which most methods have: the one that is shared."""

MOST_SECONDS, MOST_BYTES = 600, 1 << 31
"""Of fits whose scores wait for those of others: what an interrupt may lose, and what is held."""

_FEW = 10  # points of which the time of a score is taken, where a batch would take more than a second

Outcome: TypeAlias = tuple[Run, Result | SluError, bool]
"""A run; its result, or why there is none; whether it was made now."""


def execute_all(runs: Iterable[Run], place: Place, tell: Callable[[str], None]) -> Iterator[Outcome]:
    """The results of runs on one network and the same points, as `execute` gives each of them.

    Of a deep network the gradients of the queries take longer than all else. So methods that read the variance of the
    outputs are fitted first, as many as may be lost by an interrupt, and then scored at once.

    Args:
        runs: Of one setting, network, sets and training, at any budgets; the next is asked for when the one before is
            fitted.
        place: Where data come from and results go to.
        tell: Called with what is done beside the runs.
    """
    waiting: list[tuple[Run, Fitted]] = []
    loaded: Networks | None = None
    for run in runs:
        fitted = None
        try:
            config = run.config()
            if config["reading"] != READING or members_of(config) > 1 or place.store.find(config) is not None:
                outcome = run, *execute(run, place)
            else:
                loaded = loaded or networks(find_setting(run.setting), run.seed, place, run.training)
                fitted = run.fit(config, place, loaded)
                outcome = None if _shares(fitted) else _alone(run, fitted, place)
        except SluError as reason:
            outcome = run, reason, False
        if outcome is not None:
            yield outcome
        elif fitted is not None:
            waiting.append((run, fitted))
        if _enough([each for _, each in waiting]):
            yield from _scored(waiting, place, tell)
            waiting = []
    yield from _scored(waiting, place, tell)


def _shares(fitted: Fitted) -> bool:
    return getattr(fitted.score, "readout", None) is not None


def _enough(waiting: Sequence[Fitted]) -> bool:
    # A fit of SLU has a checkpoint.
    lost = sum(each.seconds for each in waiting if each.config["class"] != "SLU")
    return lost > MOST_SECONDS or sum(each.method.cost(batch=QUERY_BATCH).artefact for each in waiting) > MOST_BYTES


def _scored(waiting: Sequence[tuple[Run, Fitted]], place: Place, tell: Callable[[str], None]) -> Iterator[Outcome]:
    if len(waiting) > 1:
        tell(f"scores of {len(waiting)} methods")
        try:
            together = _scored_at_once([fitted for _, fitted in waiting], place)
        except SluError:  # of one of them, perhaps
            pass
        else:
            for (run, fitted), scored in zip(waiting, together, strict=True):
                yield _written(run, fitted, place, partial(_timed, fitted, place, scored))
            return
    for run, fitted in waiting:
        yield _alone(run, fitted, place)


def _scored_at_once(waiting: Sequence[Fitted], place: Place) -> list[Scored]:
    config = waiting[0].config
    columns: list[dict[str, np.ndarray]] = [{} for _ in waiting]
    for name in (dataset_of(config), *config["outside"]):
        data = Batches(queries_of(name, config, place), QUERY_BATCH)
        shared = read_shared([each.score for each in waiting], data, READING, progress=place.progress)
        for column, scores in zip(columns, shared, strict=True):
            column[name] = checked_scores(scores, name)
    return [Scored(column.pop(dataset_of(config)), column) for column in columns]


def _alone(run: Run, fitted: Fitted, place: Place) -> Outcome:
    return _written(run, fitted, place, lambda: fitted.scored(place))


def _written(run: Run, fitted: Fitted, place: Place, scored: Callable[[], tuple[Scored, float]]) -> Outcome:
    try:
        return run, place.store.write(fitted.config, *fitted.work(*scored())), True
    except SluError as reason:
        return run, reason, False


def _timed(fitted: Fitted, place: Place, scored: Scored) -> tuple[Scored, float]:
    """The scores, and what one takes alone: of a few points, and of a batch where that takes less than a second."""
    source, took = queries_of(dataset_of(fitted.config), fitted.config, place), 0.0
    for count in (_FEW, QUERY_BATCH):
        points = source.read(torch.arange(min(count, len(source))))
        begin = time.perf_counter()
        fitted.score(points, reading=READING)
        took = (time.perf_counter() - begin) / len(points[1])
        if took * QUERY_BATCH > 1:
            break
    return scored, took
