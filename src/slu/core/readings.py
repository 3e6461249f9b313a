"""How a score is read off a subspace: what is measured of each input.

| reading | rows | divided by their squared length |
|---|---|---|
| variance | J: the change of the outputs | no: the paper's score |
| relative | J | yes: the share of the change that the data do not pin down |
| fisher | Lᵀ J: the change of the predicted distribution | no |
| fisher-relative | Lᵀ J | yes |
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slu.errors import unknown
from slu.likelihoods import Likelihood


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
    vectors are brought to size one and the scale is put back into the energies. Where L itself has underflowed, as far
    from the data where logits differ by hundreds, its direction is lost: the outputs stand for it with the scale 0,
    so that the share that is open stays what it is for them, and does not fall to 0.
    """
    points, count = outputs.shape
    unit = torch.eye(count, dtype=outputs.dtype, device=outputs.device)[:, None].expand(count, points, count)
    if not reading.fisher:
        return unit.transpose(0, 1), torch.ones_like(outputs[:, :1])
    vectors = likelihood.factor_product(outputs, unit).transpose(0, 1)
    scale = vectors.abs().amax((1, 2), keepdim=True)
    known = scale > 0
    vectors = torch.where(known, vectors / scale.where(known, torch.ones_like(scale)), unit.transpose(0, 1))
    return vectors, scale[:, 0]
