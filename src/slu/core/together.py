"""Several readings of every input from one pass of gradients.

Letters: J (t, p) the Jacobian of an input, L (t, t) with H = L Lᵀ, S the sketch. The rows of Lᵀ J are linear
combinations of those of J, and so are their sketches: the t gradients of the outputs serve both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from slu.budgets import Cost
from slu.core.readings import READINGS, Reading, rows_to_measure
from slu.core.scoring import GradientReader, check_outputs, score_batches
from slu.data import Batch
from slu.data.batches import take
from slu.gradients import ForwardPass, Pieces

MixingMeter: TypeAlias = Callable[[Pieces, tuple[int, int], Tensor], Tensor]
"""Of all t rows of some samples, and combinations (samples, q, t) of them: (2, m, samples, t) numbers, as a
meter gives them for the rows and for their combinations."""

_FEWEST = 4  # inputs that must come together, or their gradients are taken twice instead
_MIXED = 32  # outputs up to which combining gradients is cheaper than taking as many again


def read_together(
    reader: GradientReader,
    data: Any,
    names: Sequence[str],
    mixing: MixingMeter,
    *,
    cost: Callable[[], Cost],
    progress: bool | None,
) -> dict[str, Tensor]:
    """(n,) scores by reading, as the reader gives them one by one.

    Cost: t gradients an input, whichever readings are asked for, and t² p operations for both kinds of rows.
    2 t gradients for networks of more than 32 outputs, or of so large activations that the gradients of all outputs
    are not in memory together for a few inputs; of fewer inputs than a batch has, these go forward twice.
    """
    found = [READINGS[name] for name in names]

    def score(batch: Batch) -> Tensor:
        energies, scale = row_energies(reader, batch, {reading.fisher for reading in found}, mixing)
        values = [_value(reader, reading, energies[reading.fisher].sum(-1), scale) for reading in found]
        return torch.stack(values, -1)

    scores = score_batches(reader.network, data, score, cost=cost, progress=progress)
    return dict(zip(names, scores.unbind(-1), strict=True))


def _value(reader: GradientReader, reading: Reading, measured: Tensor, scale: Tensor) -> Tensor:
    return reader.finished(measured, scale[:, 0] if reading.fisher else torch.ones_like(scale[:, 0]), reading.relative)


def row_energies(
    reader: GradientReader, batch: Batch, kinds: set[bool], mixing: MixingMeter
) -> tuple[dict[bool, Tensor], Tensor]:
    """(m, b, t) numbers of the rows of J (False) and of Lᵀ J (True), and the scale that the latter lack."""
    passed = reader.gradients.forward(batch.inputs)
    check_outputs(reader.network, batch.inputs, passed.outputs, batch.index)
    with torch.no_grad():
        unit, _ = rows_to_measure(reader.likelihood, passed.outputs, Reading(fisher=False, relative=False))
        vectors, scale = rows_to_measure(reader.likelihood, passed.outputs, Reading(fisher=True, relative=False))
    if len(kinds) == 1:
        (kind,) = kinds
        return {kind: passed.measure(vectors if kind else unit, reader.meter)}, scale
    points, count = unit.shape[:2]
    most = passed.max_examples if passed.max_examples >= _FEWEST else points
    both = []
    for start in range(0, points, most):
        chunk = slice(start, min(points, start + most))
        inputs = take(batch.inputs, chunk, points)
        passed = reader.gradients.forward(inputs) if most < points else passed
        found = _combined(passed, unit[chunk], vectors[chunk], mixing) if count <= _MIXED else None
        if found is None:
            found = reader.gradients.measure(inputs, torch.cat([unit[chunk], vectors[chunk]], 1), reader.meter)
        both.append(found)
    energies = torch.cat(both, 1)
    return {False: energies[..., :count], True: energies[..., count:]}, scale


def _combined(passed: ForwardPass, unit: Tensor, vectors: Tensor, mixing: MixingMeter) -> Tensor | None:
    """(m, samples, 2 t) numbers of rows and of their combinations; None where there is no room for all rows of one."""
    count = unit.shape[1]
    both: Tensor | None = None
    for rows in passed.rows(unit):
        if rows.shape[1] != count:
            return None
        plain, mixed = mixing(rows.pieces, rows.shape, vectors[rows.examples])
        both = plain.new_zeros(len(plain), len(unit), 2 * count) if both is None else both
        both[:, rows.examples] = torch.cat([plain, mixed], -1)
    return both
