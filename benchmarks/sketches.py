"""Every sketch on the same footing: time, state, and the error of the score it leads to.

Two tables:

- accuracy: rms error of the relative score (ratio estimator with the sketch's own correction)
  against the exact projection, on spread-out vectors and on vectors with few nonzeros;
- speed: time in copies of the vectors sketched, into memory that is there (`copy_`), in one run.

The default is "block_srft", chosen by these tables (p = 44,426, rank 100, four
draws: rms error of the relative score and smallest singular value of S U; time at s = 1000 in copies
of what is sketched, for one vector of 270,000 and of 20,000,000 numbers and for 320 rows of 44,426):

| sketch | spread, s = 1000 / 4000 | sparse, s = 1000 / 4000 | smallest, sparse | copies |
|---|---|---|---|---|
| block_srft | 0.022 / 0.009 | 0.014 / 0.007 | 0.70 / 0.84 | 63, 19, 11 |
| kronecker | 0.020 / 0.010 | 0.012 / 0.006 | 0.68 / 0.85 | 48, 8, 11 (1) |
| srft | 0.021 / 0.009 | 0.016 / 0.006 | 0.70 / 0.85 | -, -, 27 |
| hashed | 0.019 / 0.009 | 0.143 / 0.095 | 0 / 0 | 39, 18, 9 |
| hashed, 4 nonzeros | 0.021 / 0.011 | 0.037 / 0.017 | 0.60 / 0.76 | 145, 46, 30 |
| shift | 0.020 / 0.009 | 0.137 / 0.047 | 0 / 0 | 35, 11, 14 |
| gaussian | 0.020 / - | 0.018 / - | 0.68 / - | |

(1) In a later run, in which block_srft took 47, 11, 12.

On spread-out vectors all agree within the noise of four draws. Only the transforms (and the dense
matrices) are accurate on vectors with few nonzeros, and of these the blocks are the cheapest.
"kronecker" transforms each matrix in two dimensions instead of blocks of the vector. It is as accurate and as fast,
holds a tenth of the state of "block_srft" at 20,000,000 numbers, and takes gradients that are not formed.
Of the others "shift" holds the least state; "hashed" is a little faster on many rows, where gradients are known to be
spread out. A copy of 270,000 numbers stays in the cache and takes as long as two or three calls of torch: the
FFT alone is 16 to 18 copies there (11 of 20,000,000), unpacking the signs 4 (8), and a hash is ten such calls.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.timing import ratio
from slu import seeds
from slu.sketches import SKETCHES, Sketch, SketchSpec, build

LENET = 44_426
RANK, QUERIES = 100, 64
DENSE = ("gaussian", "rademacher")
LENET_LAYOUT = ((6, 25), (1, 6), (16, 150), (1, 16), (120, 256), (1, 120), (84, 120), (1, 84), (10, 84), (1, 10))
VARIANTS: list[tuple[str, dict[str, int]]] = [
    *((kind, {}) for kind in SKETCHES if kind != "identity"),
    ("hashed", {"nonzeros": 4}),
]


def spread_problem(seed: int, p: int = LENET) -> tuple[Tensor, Tensor, Tensor]:
    """Directions (k, p), queries (q, p), true relative scores (q,): captured share 0.6.

    Numbers differ in size by a log-normal factor, and all vectors share a part of their direction,
    as gradients of one network do.
    """
    stream = seeds.stream(seed, "benchmark", "spread")
    scale = torch.randn(p, generator=stream).exp()
    raw = torch.randn(RANK + QUERIES, p, generator=stream) * scale
    raw += torch.randn(p, generator=stream) * scale
    basis = torch.linalg.qr(raw[:RANK].mT).Q.mT.contiguous()
    outside = raw[RANK:] - (raw[RANK:] @ basis.mT) @ basis
    inside = torch.randn(QUERIES, RANK, generator=stream) @ basis
    share = 0.6
    queries = unit(inside) * share**0.5 + unit(outside) * (1 - share) ** 0.5
    return basis, queries, torch.full((QUERIES,), 1 - share)


def sparse_problem(seed: int, p: int = LENET) -> tuple[Tensor, Tensor, Tensor]:
    """One-hot directions; queries with three nonzeros, two of them on directions."""
    stream = seeds.stream(seed, "benchmark", "sparse")
    places = torch.randperm(p, generator=stream)[: RANK + QUERIES]
    basis = torch.zeros(RANK, p).scatter_(1, places[:RANK, None], 1.0)
    weights = unit(torch.randn(QUERIES, 3, generator=stream))
    pairs = torch.stack([torch.randperm(RANK, generator=stream)[:2] for _ in range(QUERIES)])
    columns = torch.cat([places[pairs], places[RANK:, None]], 1)
    return basis, torch.zeros(QUERIES, p).scatter_(1, columns, weights), weights[:, 2] ** 2


def unit(rows: Tensor) -> Tensor:
    """Rows of length 1."""
    return rows / rows.norm(dim=1, keepdim=True)


def sketched(sketch: Sketch, rows: Tensor) -> Tensor:
    """The sketch of each row, in float64 for the small algebra that follows."""
    out = torch.zeros(len(rows), sketch.spec.size)
    sketch.accumulate(0, rows, out)
    return out.double()


def score_error(sketch: Sketch, problem: tuple[Tensor, Tensor, Tensor]) -> tuple[float, float]:
    """Mean squared error of the relative score, and the smallest singular value of S U."""
    basis, queries, truth = problem
    left, values, _ = torch.linalg.svd(sketched(sketch, basis).mT, full_matrices=False)
    left = left[:, values > 1e-6]
    y = sketched(sketch, queries)
    rest = 1 - (y @ left).square().sum(1) / y.square().sum(1)
    score = rest * sketch.correction(left.shape[1])
    return float((score - truth).square().mean()), float(values.min())


def accuracy_table(sizes: Sequence[int] = (1000, 4000), draws: Sequence[int] = (0, 1, 2, 3)) -> list[dict[str, object]]:
    """Rms error of the score for every sketch, size and kind of vectors, over several draws.

    The dense sketches are left out beyond s = 1000, where their matrix would take gigabytes.
    """
    rows: list[dict[str, object]] = []
    for name, make in (("spread", spread_problem), ("sparse", sparse_problem)):
        problem = make(0)
        for kind, options in VARIANTS:
            row: dict[str, object] = {"vectors": name, "sketch": label(kind, options)}
            for s in sizes:
                if kind in DENSE and s > 1000:
                    continue
                found = [
                    score_error(build(SketchSpec(kind, LENET, s, seed, options, layout(LENET))), problem)
                    for seed in draws
                ]
                row[f"rms, s = {s}"] = statistics.fmean(error for error, _ in found) ** 0.5
                row[f"smallest singular value, s = {s}"] = min(value for _, value in found)
            rows.append(row)
    return rows


def speed_table(
    settings: Iterable[tuple[int, int]] = ((270_000, 1), (20_000_000, 1), (LENET, 320)),
) -> list[dict[str, object]]:
    """Time of a sketch and its adjoint in copies, and state in bytes a parameter, for (p, rows)."""
    rows: list[dict[str, object]] = []
    for p, count in settings:
        v = torch.randn(count, p, generator=seeds.stream(0, "benchmark", "speed"))
        target, out = torch.empty_like(v), torch.zeros(count, 1000)

        def copy(target: Tensor = target, v: Tensor = v) -> None:
            target.copy_(v)

        for kind, options in VARIANTS:
            if kind in DENSE or (p > LENET and kind == "srft"):
                continue
            sketch = build(SketchSpec(kind, p, 1000, 0, options, layout(p)))
            row: dict[str, object] = {"p": f"{p:,}", "rows": count, "sketch": label(kind, options)}
            row["copies"] = str(ratio(partial(sketch.accumulate, 0, v, out), copy, rounds=9))
            row["adjoint, copies"] = str(ratio(partial(sketch.spread, 0, p, out), copy, rounds=5))
            rows.append(row | {"bytes a parameter": sketch.state_bytes / p})
    return rows


def layout(p: int) -> tuple[tuple[int, int], ...]:
    """Shapes of tensors with p numbers: LeNet's, or matrices with 512 rows and columns and a vector."""
    if p == LENET:
        return LENET_LAYOUT
    whole, rest = divmod(p, 512 * 512)
    return ((512, 512),) * whole + ((1, rest),) * (rest > 0)


def label(kind: str, options: dict[str, int]) -> str:
    """The kind with the options that differ from its defaults."""
    return " ".join([kind, *(f"{name}={value}" for name, value in options.items())])


def show(title: str, rows: list[dict[str, object]]) -> None:
    """Print rows as a table."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    table = Table(*heads, title=title)
    for row in rows:
        table.add_row(*(text(row.get(head, "")) for head in heads))
    Console(width=120).print(table)


def text(value: object) -> str:
    """Three digits for a measured number."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    show(f"Sketches: rms error of the relative score, p = {LENET:,}, rank {RANK}, four draws", accuracy_table())
    show("Sketches: time at s = 1000, in copies of what is sketched; median and middle half", speed_table())
