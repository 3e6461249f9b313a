"""How the default call grows: with the points n, the parameters p and the outputs t.

    python -m benchmarks growth [--quick] [--json FILE] [--picture FILE]

Each measurement runs in a fresh process with one thread. p ends at 10⁸ here; `benchmarks.billion` has 10⁹.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.timing import Ratio, fresh

POINTS = (1000, 2000, 4000, 8000, 16000)
WIDTHS = (13, 100, 670, 2790, 9650)
"""Of MLPs with two hidden layers: about 10⁴, 10⁵, 10⁶, 10⁷ and 10⁸ parameters."""

FITTED = 1024
"""Points of these fits: several times what the scale reads first."""

OUTPUTS = (2, 10, 100, 1000, 10_000, 50_000)
WIDTH = 128
"""Of the MLP with more and more outputs."""

BATCH = 32
Results = dict[str, Any]


def main(quick: bool = False) -> Results:
    """Measure and print; the result is plain data for `picture`."""
    console = Console(width=150)
    return {
        "n": points(console, POINTS[:3] if quick else POINTS),
        "p": parameters(console, WIDTHS[:3] if quick else WIDTHS, 1 if quick else 3, 256 if quick else FITTED),
        "t": outputs(console, OUTPUTS[:3] if quick else OUTPUTS, 2 if quick else 7),
    }


def points(console: Console, counts: tuple[int, ...]) -> list[Results]:
    """Time and peak of a LeNet's fit, the batches made as they are read."""
    rows = []
    for n in counts:
        row = {"points": n, **fresh("benchmarks.measure", "peak", peaks=True, name="LeNet", points=n)}
        # The allocator that shows peaks is slow, so the time is that of another process.
        rows.append(row | {"seconds": fresh("benchmarks.measure", "peak", name="LeNet", points=n).get("seconds")})
    table = Table("n", "seconds", "ms per point", "peak, MB", title="Growth with n: default fit of a LeNet")
    for row in rows:
        if "failed" in row:
            table.add_row(f"{row['points']:,}", row["failed"])
            continue
        per_point = f"{1e3 * row['seconds'] / row['points']:.3f}"
        table.add_row(f"{row['points']:,}", f"{row['seconds']:.2f}", per_point, f"{row['peak'] / 1e6:.1f}")
    console.print(table)
    return rows


def parameters(console: Console, widths: tuple[int, ...], rounds: int, fitted: int) -> list[Results]:
    """Fit and query of MLPs, in their units."""
    rows = [fresh("benchmarks.measure", "size", width=width, points=fitted, rounds=rounds) for width in widths]
    table = Table(
        "p", "fit / forward + backward", f"query of {BATCH} / forward", "kept beyond s·k", "rows + columns",
        title=f"Growth with p: MLPs, n = {fitted:,}",
    )  # fmt: skip
    for width, row in zip(widths, rows, strict=True):
        if "failed" in row:
            table.add_row(f"width {width}", row["failed"])
            continue
        kept = (f"{row['kept'][name]:,}" for name in ("beyond", "rows + columns"))
        table.add_row(f"{row['parameters']:,}", str(Ratio(**row["fit"])), str(Ratio(**row["query"])), *kept)
    console.print(table)
    return rows


def outputs(console: Console, counts: tuple[int, ...], rounds: int) -> list[Results]:
    """Query of an MLP with more and more outputs."""
    rows: list[Results] = []
    table = Table("t", "p", f"query of {BATCH} / forward", "ms", title=f"Growth with t: MLP 784-{WIDTH}-{WIDTH}-t")
    for count in counts:
        result = fresh("benchmarks.measure", "outputs", subject=WIDTH, counts=[count], batches=[BATCH], rounds=rounds)
        if "failed" in result:
            table.add_row(f"{count:,}", "", result["failed"])
            continue
        [row] = result
        rows.append(row)
        query = str(Ratio(**row["query"][str(BATCH)]))
        table.add_row(f"{count:,}", f"{row['parameters']:,}", query, f"{1e3 * row['seconds']:.2f}")
    console.print(table)
    return rows
