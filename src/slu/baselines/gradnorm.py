"""GradNorm (Huang et al., 2021): the size of a gradient in the weights of the last layer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from slu.baselines.features import FeatureData, FeatureMethod, Layer, check_logits
from slu.baselines.vim import check_linear
from slu.budgets import Cost, Size
from slu.data import Batch, check_finite
from slu.data.structure import tensors
from slu.errors import ModelError
from slu.gradients import Forward
from slu.likelihoods import Likelihood

_FORMED = 1 << 22  # numbers of gradients that are formed at a time


@final
class GradNorm(FeatureMethod):
    """How small is the gradient of KL(uniform ‖ prediction) in the weights of the layer that gives the logits?

    The score is minus the sum of its absolute values: the paper has larger gradients for inputs like the data. Logits
    f = W h + b of features h have the gradient (π - 1/C) hᵀ in W, with π = softmax(f) and C classes, so the score is
    -‖π - 1/C‖₁ ‖h‖₁. For classification only; the paper's temperature is 1.

    Args:
        model, likelihood, forward: As of `FeatureMethod`.
        features: As of `FeatureMethod`, the name of the nn.Linear whose weights these are.

    Cost: one forward pass per input, and the derivative of what follows the layer. Nothing is fitted or kept: `fit`
    reads the first batch of the loader to find the layer.

    Numerics: norms in float64. Gradients of a layer with one position are not formed.
    """

    reading = "gradnorm"
    kept: ClassVar[dict[str, tuple[int | None, ...]]] = {}

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        features: str | None = None,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(model, likelihood, features, forward)
        self._check_classes()
        check_linear(self)

    def _cost(self, size: Size) -> Cost:
        width, batch = self._width(), size.batch
        formed = max(size.outputs * width, min(_FORMED, batch * size.outputs * width))
        return Cost(artefact=0, fitting=0, querying=8 * (batch * (2 * width + 4 * size.outputs) + formed), passes=0)

    def _state(self, data: FeatureData) -> dict[str, Tensor]:
        check_logits(next(iter(data)).outputs)
        return {}

    def _score(self, state: Mapping[str, Tensor], layer: Layer, batch: Batch) -> Tensor:
        del state
        calls: list[tuple[Tensor, Tensor]] = []

        def cut(_: nn.Module, args: Any, kwargs: Any, result: Tensor) -> Tensor:
            # The parameters require no gradients here, so this is where the graph begins.
            leaf = result.detach().requires_grad_()
            calls.append((tensors((args, kwargs))[0].detach(), leaf))
            return leaf.clone()  # what follows may change it in place

        with ExitStack() as stack:
            stack.callback(layer.module.register_forward_hook(cut, with_kwargs=True).remove)
            outputs = layer.network.outputs(batch.inputs)
        check_finite(outputs, f"the model's outputs on batch {batch.index}")
        check_logits(outputs)
        points = len(outputs)
        if not calls or any(len(values) != points for values, _ in calls):
            raise ModelError(
                f"{layer.words} is not called with one row per point; name the layer of the logits with features="
            )
        # The divergence less a constant. Points do not depend on each other, so a sum has the gradients of all.
        divergence = -outputs.double().log_softmax(1).mean(1).sum()
        slopes = torch.autograd.grad(divergence, [leaf for _, leaf in calls], materialize_grads=True)
        with torch.no_grad():
            layer.network.check_pointwise(batch.inputs, outputs)
        inputs = torch.cat([_positions(values, points) for values, _ in calls], 1)
        return -_absolute_sums(torch.cat([_positions(each, points) for each in slopes], 1), inputs)


def _positions(values: Tensor, points: int) -> Tensor:
    """(b, positions, numbers) in float64."""
    return values.double().reshape(points, -1, values.shape[-1])


def _absolute_sums(slopes: Tensor, inputs: Tensor) -> Tensor:
    """(b,) sums of the absolute values of Σ over positions of slope · inputᵀ."""
    if slopes.shape[1] == 1:
        return slopes.abs().sum((1, 2)) * inputs.abs().sum((1, 2))
    some = max(1, _FORMED // (slopes.shape[2] * inputs.shape[2]))
    pairs = zip(slopes.split(some), inputs.split(some), strict=True)
    return torch.cat([(each.transpose(1, 2) @ values).abs().sum((1, 2)) for each, values in pairs])
