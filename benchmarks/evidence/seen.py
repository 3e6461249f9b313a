"""Queries seen once through a sketch, and read against any subspace: many fits for the price of one pass of gradients.

Letters: J (t, p) the Jacobian of an input, S the sketch, L (t, t) with H = L Lᵀ. S Jᵀ and J Jᵀ are all that a reading
needs of an input, for they give the sketches and the lengths of the rows of Lᵀ J as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slu import SluScore
from slu.core.directions import FISHER, JACOBIAN, row_vectors
from slu.core.readout import GRADIENT_READINGS
from slu.data.batches import take
from slu.gradients import PerExampleGradients
from slu.subspace import ESTIMATORS, Energies, SketchedSubspace

_PIECE = 1 << 25  # numbers of gradients at a time: all of an input must come together


@dataclass(frozen=True)
class Seen:
    """Some inputs: (n, t, s) sketches of their Jacobians, (n, t, t) inner products of the rows, (n, t) outputs."""

    sketched: Tensor
    inner: Tensor
    outputs: Tensor


def see(score: SluScore, batches: Sequence[Any]) -> Seen:
    """What a score's sketch and scale show of inputs.

    Cost: t gradients an input; t (s + t) numbers of each are kept.
    """
    network = score.settings.network
    gradients = PerExampleGradients(network, _PIECE, piece=_PIECE)
    sketches, inners, outputs = [], [], []
    with network.evaluating():
        for inputs in _few(batches, gradients):
            passed = gradients.forward(inputs)
            points, count = passed.outputs.shape
            sketched = torch.zeros(points, count, score.sketch.shape[0])
            inner = torch.zeros(points, count, count)
            for rows in passed.rows(torch.eye(count).expand(points, count, count)):
                if rows.shape[1] != count:
                    raise RuntimeError("the outputs of an input came apart; see fewer inputs at a time")
                part = torch.zeros(*rows.shape, sketched.shape[-1])
                for start, values in rows.pieces:
                    here = values if score.scale is None else score.scale.scaled(start, values)
                    score.sketch.accumulate(start, here, part)
                    inner[rows.examples] += here @ here.transpose(1, 2)
                sketched[rows.examples] = part
            sketches.append(sketched)
            inners.append(inner)
            outputs.append(passed.outputs)
    return Seen(torch.cat(sketches), torch.cat(inners), torch.cat(outputs))


def _few(batches: Sequence[Any], gradients: PerExampleGradients) -> Iterator[Any]:
    """As many inputs at a time as all rows come together of."""
    for batch in batches:
        passed = gradients.forward(batch)
        points, most = len(passed.outputs), max(1, passed.max_examples)
        del passed
        for start in range(0, points, most):
            yield take(batch, slice(start, min(start + most, points)), points)


def read(score: SluScore, subspace: SketchedSubspace, ridge: float, seen: Seen) -> dict[str, Tensor]:
    """(n,) by reading: what the score would say with this subspace and ridge.

    Cost: n t s r operations, no gradients.
    """
    scores = {}
    for name in GRADIENT_READINGS:
        kind = FISHER if name.startswith("fisher") else JACOBIAN
        vectors, scale = row_vectors(score.settings.likelihood, seen.outputs, kind)
        exact = torch.einsum("bqt,btu,bqu->b", vectors, seen.inner, vectors)
        energies = subspace.energies(exact[:, None], vectors @ seen.sketched, ridge).sum()
        energies = Energies(exact, energies.captured, energies.residual, energies.reopened)
        value = ESTIMATORS[score.settings.estimator](energies, subspace.correction_with(ridge))
        whole = exact if name.endswith("relative") else scale[:, 0].square().reciprocal()
        scores[name] = torch.where(exact > 0, value / whole, torch.zeros_like(value))
    return scores
