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
from slu.curvature import Batch, Pieces
from slu.methods.readings import READINGS, Reading, rows_to_measure
from slu.methods.scoring import GradientReader, check_outputs, score_batches

MixingMeter: TypeAlias = Callable[[Pieces, tuple[int, int], Tensor], Tensor]
"""Of all t rows of some samples, and combinations (samples, q, t) of them: (2, m, samples, t) numbers, as a
meter gives them for the rows and for their combinations."""

_MIXED = 32  # outputs up to which combining gradients is cheaper than taking as many again


def read_together(
    reader: GradientReader,
    data: Any,
    names: Sequence[str],
    mixing: MixingMeter,
    *,
    cost: Cost,
    progress: bool | None,
) -> dict[str, Tensor]:
    """(n,) scores by reading, as the reader gives them one by one.

    Cost: t gradients an input, whichever readings are asked for, and t² p operations for both kinds of rows;
    2 t gradients for networks of more than 32 outputs.
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
    count = unit.shape[1]
    both = None
    for rows in passed.rows(unit) if count <= _MIXED else ():
        if rows.shape[1] != count:
            both = None  # too little room for all gradients of an input at once
            break
        some = mixing(rows.pieces, rows.shape, vectors[rows.samples])
        both = some.new_zeros(2, some.shape[1], *unit.shape[:2]) if both is None else both
        both[:, :, rows.samples] = some
    if both is None:
        measured = reader.gradients.measure(batch.inputs, torch.cat([unit, vectors], 1), reader.meter)
        both = torch.stack([measured[..., :count], measured[..., count:]])
    return {False: both[0], True: both[1]}, scale
