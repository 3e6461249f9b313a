"""`compare`: methods side by side on the user's own network and data."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from slu.artifacts.artifact import versions
from slu.checks import whole
from slu.comparing.board import Board
from slu.comparing.bootstrap import RESAMPLES, Scored, judge_all
from slu.comparing.candidates import Candidates, candidates
from slu.comparing.evaluation_data import EvaluationData, evaluation_data
from slu.comparing.preflight import find_network, preflight
from slu.comparing.results import BoardRow, Failure
from slu.comparing.runs import ALL, Run, run
from slu.errors import SettingError, require

_FEWEST = 40  # resamples of which one lies below the 2.5 % percentile


def compare(  # noqa: PLR0913 (seven of the eight are keyword-only)
    methods: Candidates,
    *,
    train: Any,
    inside: Any,
    outside: Any,
    readings: Sequence[str] | str | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    progress: bool | None = None,
) -> Board:
    """Fit methods, score points inside and outside with each, and put them on a board.

    A method that fails, for whatever reason, has that reason in its row, and the others continue; only
    an interrupt ends everything. One with a plan beyond the memory that is free is not begun. Before anything is
    fitted the network of the first method that has one is called on a point of every set.

    Args:
        methods: Methods; or a mapping from names to methods, or to functions without arguments that
            make one, so that one that cannot even be made gets a row that says why. `at_budget`
            makes such a mapping. In either, a detector of your own may stand for a method: a function
            that takes the inputs of a batch and gives one score per point, larger for less sure; or an object with
            such a function as `predict`, like the detectors of pytorch-ood. It is called as it is, fitted before and
            with its networks in evaluation mode.
        train: What methods are fitted on: a loader that can be read again and again, or a batch. It
            alone may shuffle.
        inside: Points like those, which a score should be sure about; not those of the fit.
        outside: Points unlike them: a mapping from names to loaders or batches; or one of them alone
            (a batch that is itself a dict must stand in a mapping).
        readings: How scores are read: None for each one's default; "all"; or names, of which every
            method gets a row for each that it has, and its default where it has none. SLU is fitted on all
            points but those it is calibrated on, for its default, "combined", "distance", "angle" and "all"; for
            other readings on all, as the others are.
        resamples: Of the bootstrap; the same for all, so that rows can be compared in pairs.
        seed: Of the resamples.
        progress: Whether to print which method runs, with bars; by default in a terminal only.

    Returns:
        A `Board`: print it, `plot` it, write it with `to_json`, ask it for a `difference`.

    Raises:
        DataError: A set is empty, not finite, a generator, comes in another order every time, or has
            points that the network cannot take though it takes the train set's.
        SettingError: Nothing to compare, or nothing to compare it on.

    Cost: one fit per method; one scoring of every set for each method and reading. Beside one fitted
    method at a time it holds all scores, in float64.
    """
    require("sklearn.metrics", "comparing scores")
    resamples, seed = whole("resamples", resamples, least=_FEWEST), whole("the seed", seed)
    if isinstance(readings, Iterable):
        readings = [readings] if isinstance(readings, str) else list(readings)
    texts = isinstance(readings, list) and readings and all(isinstance(name, str) and name for name in readings)
    if readings is not None and not texts:
        raise SettingError(f"readings must be names of readings, 'all', or None for the defaults; got {readings!r}")
    compared, network = find_network(candidates(methods))
    data = evaluation_data(train, inside, outside, None if network is None else network.reader.anew())
    if network is not None:
        preflight(network, data)
    runs: list[Run] = []
    for place, candidate in enumerate(compared, 1):
        if sys.stderr.isatty() if progress is None else progress:
            print(f"compare: {candidate.name} ({place} of {len(compared)})", file=sys.stderr, flush=True)
        runs += run(candidate, data, readings, progress)
    return _board(_labelled(runs), data, _notes(runs, readings), resamples, seed)


def _board(runs: Sequence[Run], data: EvaluationData, notes: tuple[str, ...], resamples: int, seed: int) -> Board:
    inside, outside = _sizes(runs, data)
    runs = [each if each.scored is None else _paired(each.row, each.scored, inside, outside) for each in runs]
    scored = {each.row.label: each.scored for each in runs if each.scored is not None}
    judgements, leaders = judge_all(list(scored.values()), resamples=resamples, seed=seed)
    judged = dict(zip(scored, judgements, strict=True))
    labels = list(scored)
    return Board(
        rows=tuple(replace(each.row, judgements=judged.get(each.row.label, {})) for each in runs),
        inside=inside,
        outside=outside,
        batch=data.batch,
        resamples=resamples,
        seed=seed,
        leaders={
            metric: {name: tuple(labels[place] for place in places) for name, places in sets.items()}
            for metric, sets in leaders.items()
        },
        notes=notes,
        versions=versions(),
        scores=scored,
    )


def _labelled(runs: Sequence[Run]) -> list[Run]:
    """The same with labels that are all different: a name of the user's may be another's name with its reading."""
    labelled: dict[str, Run] = {}
    for each in runs:
        label, count = each.row.label, 1
        while label in labelled:
            count += 1
            label = f"{each.row.label} ({count})"
        labelled[label] = Run(replace(each.row, label=label), each.scored)
    return list(labelled.values())


def _sizes(runs: Sequence[Run], data: EvaluationData) -> tuple[int, dict[str, int]]:
    """Points of the inside set and of every outside set as most runs saw them; 0 where none did."""

    def most(counts: Iterable[int]) -> int:
        return max(Counter(counts).items(), key=lambda item: item[1], default=(0, 0))[0]

    scored = [each.scored for each in runs if each.scored is not None]
    outside = {name: most(len(each.outside[name]) for each in scored if name in each.outside) for name in data.outside}
    return most(len(each.inside) for each in scored), outside


def _paired(row: BoardRow, scored: Scored, inside: int, outside: dict[str, int]) -> Run:
    """The run, failed where it saw another number of points than most: it cannot be paired with the others there."""
    if len(scored.inside) != inside:
        return Run(replace(row, failure=_miscounted("scoring the inside points", len(scored.inside), inside)))
    odd = {name: len(scores) for name, scores in scored.outside.items() if len(scores) != outside[name]}
    failures = {name: _miscounted(f"scoring {name!r}", count, outside[name]) for name, count in odd.items()}
    kept = {name: scores for name, scores in scored.outside.items() if name not in odd}
    return Run(replace(row, failures={**row.failures, **failures}), Scored(scored.inside, kept))


def _miscounted(stage: str, came: int, expected: int) -> Failure:
    return Failure(
        stage, "DataError", f"gave {came:,} scores where other methods gave {expected:,}: either the method does not "
        "give one score per point, or the loader gives another number of points every time; look at samplers, filters "
        "and drop_last"
    )  # fmt: skip


def _notes(runs: Sequence[Run], readings: Sequence[str] | None) -> tuple[str, ...]:
    there = {ALL, *(each.row.reading for each in runs)}
    named = dict.fromkeys(readings or ())
    return tuple(f"No method here has the reading {name!r}" for name in named if name not in there)
