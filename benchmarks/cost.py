"""What the default call costs: fits, queries, numbers kept and peaks of memory, beside the aims and beside peers.

    python -m benchmarks cost [--quick] [--json FILE] [--picture FILE]

Everything is a ratio of times taken in turns in one fresh process per network and number of threads; medians and the
range of the middle half. With one thread process time is measured, which a shared machine disturbs least, with two wall
time. "Fit" is `SLU(model, "classification").fit(batches)`, scale, hold-out and calibration included, over a forward and
backward pass on the same points; the networks with two sizes of points are extrapolated to 5,000 by the line through
both, which is printed. "Query" is `score(x)` in forward passes of its batch. "Peak" is that of a fit beyond the
network and the activations of one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import peers
from benchmarks.networks import SUBJECTS
from benchmarks.timing import Ratio, fresh

THREADS = (1, 2)
BATCHES = (1, 32)
FIT_AIM, QUERY_AIM = {False: "1.5", True: "2.0"}, {False: "4", True: "5"}
"""By whether the network is convolutional."""

PEERS = ("LeNet", "ResNet 272k")
PEER_POINTS = 256
PEER_LIMIT = 600.0  # seconds
OUTPUTS = (10, 1000)
MANY: dict[str, str | int] = {"LeNet": "LeNet", "MLP 784-1024-1024": 1024, "ResNet-18 11M": "ResNet-18 11M"}
"""Whose queries are measured with ten and with a thousand outputs: a subject, or the width of an MLP."""

MANY_AIM = "1.2"
Results = dict[str, Any]


def main(quick: bool = False) -> Results:
    """Measure and print; the result is plain data for `picture`."""
    console = Console(width=150)
    results: Results = {
        "networks": {str(threads): networks(console, threads, quick) for threads in THREADS},
        "outputs": many_outputs(console, quick),
        "peaks": peaks(console),
        "peers": elsewhere(console, quick),
    }
    return results


def networks(console: Console, threads: int, quick: bool) -> Results:
    """Fits, queries and numbers kept of all networks."""
    title = f"The default call, {threads} thread{'s' if threads > 1 else ''}: median and middle half of ratios"
    table = _table(
        title, "network", "p", "fit, n = 5,000", "aim", *(f"query of {batch}" for batch in BATCHES), "aim",
        "kept beyond s·k", "rows + columns",
    )  # fmt: skip
    results: Results = {}
    lines = []
    for name, subject in SUBJECTS.items():
        # Not fewer than the scale reads first, or the time would be no line in n.
        points = [max(640, size // 4) for size in subject.points[:1]] if quick else list(subject.points)
        rounds = 1 if quick else subject.rounds
        result = fresh(
            "benchmarks.measure", "network", threads, name=name, rounds=rounds, points=points, batches=BATCHES
        )
        results[name] = result
        if "failed" in result:
            table.add_row(name, "", result["failed"])
            continue
        table.add_row(
            name,
            f"{result['parameters']:,}",
            _shown(result["fit"]) + ("" if len(points) == 2 or points == [5000] else f" at {points[0]:,}"),
            FIT_AIM[subject.convolutional],
            *(_shown(result["query"][str(batch)]) for batch in BATCHES),
            QUERY_AIM[subject.convolutional],
            f"{result['kept']['beyond']:,}",
            f"{result['kept']['rows + columns']:,}",
        )
        lines.append(f"{name}: {_line(result)}; {result['clock']}")
    console.print(table)
    console.print(*lines, sep="\n")
    return results


def many_outputs(console: Console, quick: bool) -> Results:
    """The query with 1,000 outputs over that with 10, each in forward passes of its own network, asked in turns."""
    table = _table("Query at t = 1,000 over t = 10", "network", *(f"batch {batch}" for batch in BATCHES), "aim")
    results: Results = {}
    for name, subject in MANY.items():
        rows = fresh(
            "benchmarks.measure", "outputs", subject=subject, counts=OUTPUTS, batches=BATCHES, rounds=2 if quick else 7
        )
        results[name] = rows
        if "failed" in rows:
            table.add_row(name, rows["failed"])
            continue
        cells = []
        for batch in map(str, BATCHES):
            few, many = (row["query"][batch]["median"] for row in rows)
            cells.append(f"{many:.2f} / {few:.2f} = {_shown(rows[-1]['over the first'][batch])}")
        table.add_row(name, *cells, MANY_AIM)
    console.print(table)
    return results


def peaks(console: Console) -> Results:
    """Peaks of fits on few points, each in a process of its own."""
    table = _table(
        "Peak of a fit beyond network and activations of one batch", "network", "MB", "2sk, MB", "p, MB", "aim"
    )
    results: Results = {}
    for name, subject in SUBJECTS.items():
        points = max(256, 4 * subject.batch)
        result = results[name] = fresh("benchmarks.measure", "peak", peaks=True, name=name, points=points)
        if "failed" in result:
            table.add_row(name, result["failed"])
            continue
        beyond = result["peak"] - result["activations"]
        sizes = (beyond, result["2sk"], 4 * result["parameters"])
        table.add_row(name, *(f"{size / 1e6:.1f}" for size in sizes), "2sk + one layer's chunk")
    console.print(table)
    return results


def elsewhere(console: Console, quick: bool) -> Results:
    """Peers on the networks that they take; a line with the reason where one fails."""
    points, rounds = (64, 1) if quick else (PEER_POINTS, 3)
    title = f"Elsewhere: fit (or one product) over forward + backward on {points} points; query of {peers.QUERIES}"
    table = _table(title, "network", "peer", "fit", "query")
    results: Results = {}
    for name in PEERS:
        results[name] = {}
        for peer in (*peers.LAPLACE, peers.GGN):
            result = fresh(
                "benchmarks.peers", "peer", limit=PEER_LIMIT, name=name, peer=peer, points=points, rounds=rounds
            )
            results[name][peer] = result
            if "failed" in result:
                table.add_row(name, peer, f"skipped: {result['failed']}")
            else:
                table.add_row(name, peer, _shown(result["fit"]), _shown(result["query"]) if "query" in result else "")
    console.print(table)
    return results


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading)
    return table


def _shown(numbers: dict[str, float]) -> str:
    return str(Ratio(**numbers))


def _line(result: Results) -> str:
    sizes: Sequence[int] = result["points"]
    times = ", ".join(f"{time:.2f} s at {size:,}" for size, time in zip(sizes, result["fit seconds"], strict=True))
    unit = f"unit {1e3 * result['unit seconds per point']:.3f} ms per point"
    if "line" not in result:
        return f"fit {times}; {unit}"
    line = result["line"]
    extrapolated = f"so {line['a']:.2f} s + {1e3 * line['b']:.3f} ms n"
    return f"fit {times}, {extrapolated}; {unit}; ratio at {sizes[-1]:,}: {_shown(result['fit as measured'])}"
