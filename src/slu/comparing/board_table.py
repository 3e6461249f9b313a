"""A board as text: a block for each metric, one for memory and time, and notes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from math import ceil
from typing import TYPE_CHECKING

from slu.artifacts.pictures import printed
from slu.budgets import shown
from slu.comparing.bootstrap import LEVEL
from slu.comparing.metrics import METRICS
from slu.comparing.registry import METHODS
from slu.comparing.results import BoardRow, Results

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

WIDTH = 110
_LABEL = 25  # characters of a row's label, at most; longer ones are folded
_CELL = len("0.912* 0.898-0.925")
_READING = 15  # of a reading's name, which is broken at a hyphen where it is longer
_GAP = 2  # one of padding, one that the box draws
_MESSAGE = 400  # characters of a failure's reason that a table shows; the file has all of it
_NOTHING = "-"


def whole(board: Results) -> str:
    """Every metric, memory and time, and the notes."""
    sets = ", ".join(f"{name} ({count:,})" for name, count in board.outside.items())
    head = f"{board.inside:,} points inside; outside: {sets}\n"
    return printed([head, *_metrics(board, list(METRICS)), _costs(board), *_notes(board)], WIDTH)


def of_metric(board: Results, metric: str) -> str:
    """One metric on every outside set."""
    return printed([*_metrics(board, [metric]), *_interval_notes(board), *_failures(board)], WIDTH)


def _metrics(board: Results, metrics: Sequence[str]) -> Iterator[RenderableType]:
    """One block per metric; with one outside set all metrics are in one block."""
    names = list(board.outside)
    if len(names) == 1:
        columns = [(_titled(metric).replace(" ", "\n", 1), metric, names[0]) for metric in metrics]
        yield from (_block(board, names[0], columns), "")
        return
    most = max(1, (WIDTH - _label_width(board)) // (_CELL + _GAP))
    across = ceil(len(names) / ceil(len(names) / most))  # as even as can be
    for metric in metrics:
        for start in range(0, len(names), across):
            columns = [(name, metric, name) for name in names[start : start + across]]
            yield from (_block(board, _titled(metric), columns), "")


def _block(board: Results, title: str, columns: Sequence[tuple[str, str, str]]) -> Table:
    """Rows against columns, each a heading, a metric and an outside set."""
    table = _table(board, title)
    for heading, _, _ in columns:
        table.add_column(heading, justify="left", width=_CELL, overflow="fold")
    for row in board.rows:
        table.add_row(row.label, *(_cell(board, row, metric, name) for _, metric, name in columns))
    return table


def _table(board: Results, title: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, _GAP - 1, 0, 0), pad_edge=False)
    table.add_column(title, width=_label_width(board) - _GAP, overflow="fold", vertical="bottom")
    return table


def _label_width(board: Results) -> int:
    titles = [_titled(metric) for metric in METRICS]
    return _GAP + min(_LABEL, max(map(len, [*titles, *(row.label for row in board.rows)])))


def _titled(metric: str) -> str:
    shown = METRICS[metric]
    return f"{shown.title} ({'more' if shown.larger_is_better else 'less'} is better)"


def _cell(board: Results, row: BoardRow, metric: str, name: str) -> str:
    if name not in row.judgements:
        return "failed" if row.failure or name in row.failures else _NOTHING
    estimate = getattr(row.judgements[name], metric)
    mark = "*" if row.label in board.leaders[metric].get(name, ()) else " "
    return f"{estimate.value:.3f}{mark} {estimate.low:.3f}-{estimate.high:.3f}"


def _costs(board: Results) -> Table:
    table = _table(board, "memory and time")
    table.add_column("read as", overflow="fold", vertical="bottom", max_width=_READING)
    for name in ("kept\np", "\nbytes", "to fit\np", "\nbytes", "query\np", "\nbytes", "fit\ns", "query\nms"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    for row in board.rows:
        counts = () if row.cost is None else (row.cost.artefact, row.cost.fitting, row.cost.querying)
        memory = [text for count in counts for text in (number(row.copies(count)), shown(count))] or [_NOTHING] * 6
        reading = textwrap.fill(row.reading or _NOTHING, _READING)
        table.add_row(row.label, reading, *memory, number(row.seconds), number(row.milliseconds))
    return table


def number(value: float | None) -> str:
    """Two or three digits.

    >>> [number(value) for value in (2.9987, 0.0412, 12345.6, 0.00017, 0, None)]
    ['3', '0.041', '12,346', '<0.001', '0', '-']
    """
    if value is None:
        return _NOTHING
    if 0 < value < 0.001:
        return "<0.001"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.2g}"


def _notes(board: Results) -> Iterator[str]:
    yield ""
    yield from _interval_notes(board)
    batch = "" if board.batch is None else f" and queries in batches of {board.batch:,}"
    yield (
        f"Memory: by plan, beside the model and its activations, for {_copies(board)}{batch}; kept is what queries "
        "need; to fit and query are peaks, with the gradients in flight beside what a method holds. Times: of a query "
        "for one input, at the loaders' batch size, loading included."
    )
    for name, entry in METHODS.items():
        if entry.memory_note and any(f"{row.method} ".startswith(f"{name} ") for row in board.rows):
            yield entry.memory_note
    for note in board.notes:
        yield f"{note}."
    yield from _failures(board)


def _copies(board: Results) -> str:
    sizes = {(row.parameters, row.bytes_each) for row in board.rows if row.parameters and row.bytes_each}
    if len(sizes) != 1:
        return "p parameters, each row's own"
    ((parameters, each),) = sizes
    return f"p = {parameters:,} parameters ({shown(parameters * each)})"


def _interval_notes(board: Results) -> Iterator[str]:
    yield f"Intervals: {100 * LEVEL:g} %, from {board.resamples:,} resamples of the points inside and outside."
    if any(labels for sets in board.leaders.values() for labels in sets.values()):
        same = "the interval of the paired difference holds 0"
        yield f"* the best of its column, and what cannot be told from it: {same}."


def _failures(board: Results) -> Iterator[str]:
    """Why rows are empty; one line for what several have in common."""
    reasons: dict[str, list[str]] = {}
    for row in board.rows:
        for failure in [row.failure] if row.failure else row.failures.values():
            reasons.setdefault(str(failure), []).append(row.label)
    for reason, labels in reasons.items():
        text = reason if len(reason) <= _MESSAGE else f"{reason[:_MESSAGE]} ..."
        yield f"\n{', '.join(labels)} failed: {text}"
