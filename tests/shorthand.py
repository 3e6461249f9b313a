"""What many tests need: SLU as the paper has it, subspaces, curvatures and gradients in one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from slu import SLU
from slu.curvature import Curvature
from slu.gradients import GeneralGradients, Network, PerExampleGradients
from slu.gradients.layers import LayerForward
from slu.gradients.network import Forward
from slu.krylov import Step
from slu.likelihoods import Likelihood, resolve
from slu.parameters import Choice, select
from slu.sketches import Sketch
from slu.subspace import SketchedSubspace, SketchedVectors


def paper_slu(model: nn.Module, likelihood: str | Likelihood, **settings: Any) -> SLU:
    """SLU as the paper has it: gradients as they are, and every direction is projected out."""
    return SLU(model, likelihood, **{"scale": None, "ridge": 0.0, **settings})


def sketched_subspace(
    steps: Iterable[Step], count: int, sketch: Sketch, *, keep: float | None = None
) -> SketchedSubspace:
    """The paper's Algorithm 1 as a whole: sketch each Lanczos vector as it comes, then orthonormalize."""
    vectors = SketchedVectors(count, sketch)
    for step in steps:
        vectors.add(step)
    return vectors.subspace(keep)


def curvature(
    model: nn.Module,
    data: Any,
    likelihood: str | Likelihood = "classification",
    *,
    kind: str = "ggn",
    seed: int = 0,
    params: Choice = None,
    forward: Forward | None = None,
) -> Curvature:
    network = Network(model, select(model, params), forward)
    return Curvature(network, resolve(likelihood), data, kind=kind, seed=seed)


def jacobian_rows(
    gradients: PerExampleGradients | GeneralGradients, inputs: Any, points: int, outputs: int = 3
) -> Tensor:
    """J (b, t, p) put together from the pieces that are handed out."""
    unit = torch.eye(outputs, dtype=gradients._network.selection.dtype).expand(points, outputs, outputs)
    return all_rows(gradients, inputs, unit)


def all_rows(gradients: PerExampleGradients | GeneralGradients, inputs: Any, vectors: Tensor) -> Tensor:
    """uᵀJ (b, q, p) for vectors u (b, q, t), put together from the pieces; every number must come exactly once."""
    selection = gradients._network.selection
    result = torch.zeros((*vectors.shape[:2], selection.count), dtype=selection.dtype)
    often = torch.zeros_like(result, dtype=torch.int8)
    for rows in gradients(inputs, vectors):
        for start, values in rows.pieces:
            assert not values.requires_grad
            assert values.dtype == selection.dtype
            assert values.shape[:2] == rows.shape
            place = (rows.examples, rows.vectors, slice(start, start + values.shape[-1]))
            result[place] = values
            often[place] += 1
    assert bool((often == 1).all())
    return result


def vectors(count: int, columns: int = 3, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """(p, c) standard normal columns."""
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """‖actual - expected‖ / ‖expected‖ in float64."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def split(*tensors: Tensor, sizes: list[int]) -> list[tuple[Tensor, ...]]:
    """A loader that cuts tensors of points into batches of these sizes."""
    return list(zip(*(tensor.split(sizes) for tensor in tensors), strict=True))


def pulls(monkeypatch):
    """How many vectors are pulled back for how many inputs, as they come."""
    taken, backward = [], LayerForward.backward

    def noted(self, vectors, *rest):
        taken.append(tuple(vectors.shape[:2]))
        return backward(self, vectors, *rest)

    monkeypatch.setattr(LayerForward, "backward", noted)
    return taken
