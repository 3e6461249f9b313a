"""How a score is read off a subspace: what is measured of each input.

| reading | rows | divided by their squared length |
|---|---|---|
| variance | J: the change of the outputs | no: the paper's score |
| relative | J | yes: the share of the change that the data do not pin down |
| fisher | Lᵀ J: the change of the predicted distribution | no |
| fisher-relative | Lᵀ J | yes |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from slu.curvature import Network, SampleGradients, check_finite
from slu.curvature.batches import Inputs
from slu.errors import unknown
from slu.likelihoods import Likelihood
from slu.parameters import Segment, Selection
from slu.sketches import Sketch
from slu.subspace import Energies, SketchedSubspace

_SQUARED = 1 << 20  # numbers squared at a time
_SMALL = 1 << 16  # coordinates below which tensors are sketched together: a few blocks of a transform


@dataclass(frozen=True)
class Reading:
    """Which rows are measured, and whether as a share of their own squared length."""

    fisher: bool
    relative: bool


READINGS = {
    "variance": Reading(fisher=False, relative=False),
    "relative": Reading(fisher=False, relative=True),
    "fisher": Reading(fisher=True, relative=False),
    "fisher-relative": Reading(fisher=True, relative=True),
}


def find_reading(name: str) -> Reading:
    if name not in READINGS:
        raise unknown("reading", name, READINGS)
    return READINGS[name]


def rows_to_measure(likelihood: Likelihood, outputs: Tensor, reading: Reading) -> tuple[Tensor, Tensor]:
    """Vectors u (b, t, t) such that the rows uᵀJ are measured, and the scale (b, 1) they lack.

    Numerics: a confident network's L is tiny, and squares of its gradients would underflow; the
    vectors are brought to size one and the scale is put back into the energies.
    """
    points, count = outputs.shape
    unit = torch.eye(count, dtype=outputs.dtype, device=outputs.device)[:, None].expand(count, points, count)
    if not reading.fisher:
        return unit.transpose(0, 1), torch.ones_like(outputs[:, :1])
    vectors = likelihood.factor_product(outputs, unit).transpose(0, 1)
    scale = vectors.abs().amax((1, 2), keepdim=True)
    vectors = vectors / scale.where(scale > 0, torch.ones_like(scale))
    return vectors, scale[:, 0]


def measure(
    network: Network,
    gradients: SampleGradients,
    sketch: Sketch,
    subspace: SketchedSubspace,
    inputs: Inputs,
    vectors: Tensor,
) -> Energies:
    """(b, q) energies of the rows uᵀJ of every sample, for vectors (b, q, t).

    Cost: q gradients a sample, each sketched as it comes and dropped; s numbers a row on top of
    the gradients in flight.
    """
    selection = network.selection
    exact, captured, residual = (
        torch.zeros(vectors.shape[:2], dtype=selection.dtype, device=selection.device) for _ in range(3)
    )
    for rows in gradients(inputs, vectors):
        shape = (rows.samples.stop - rows.samples.start, rows.vectors.stop - rows.vectors.start)
        sketched = exact.new_zeros(*shape, sketch.shape[0])
        squared = exact.new_zeros(shape)
        for start, values in _joined(selection, rows.gradients, shape):
            for part in values.split(_SQUARED, -1):
                squared += part.square().sum(-1)
            sketch.accumulate(start, values, sketched)
            del values  # or it would stay while the next is put together
        found = subspace.energies(squared, sketched)
        exact[rows.samples, rows.vectors] = found.exact
        captured[rows.samples, rows.vectors] = found.captured
        residual[rows.samples, rows.vectors] = found.residual
    return Energies(exact, captured, residual)


def _joined(selection: Selection, gradients: dict[str, Tensor], shape: tuple[int, int]) -> Iterator[tuple[int, Tensor]]:
    """The gradients as (first coordinate, (samples, vectors, m)), small neighbours in one piece.

    A transform costs a whole block however few numbers of it are given, so biases and norms are
    sketched together with what stands beside them; a large one goes alone and is not copied. Each
    gradient is let go once handed out.
    """
    for group in neighbours(selection):
        held = [gradients.pop(segment.name).reshape(*shape, -1).to(selection.dtype) for segment in group]
        joined = held[0] if len(held) == 1 else torch.cat(held, -1)
        held.clear()
        yield group[0].start, joined
        del joined


def neighbours(selection: Selection) -> Iterator[list[Segment]]:
    """The segments in groups that are sketched together."""
    group: list[Segment] = []
    for segment in selection.segments:
        large = segment.stop - segment.start >= _SMALL
        if group and (large or segment.stop - group[0].start >= _SMALL):
            yield group
            group = []
        group.append(segment)
        if large:
            yield group
            group = []
    if group:
        yield group


def check_outputs(outputs: Tensor, index: int) -> Tensor:
    check_finite(outputs, f"the model's outputs on batch {index}")
    return outputs
