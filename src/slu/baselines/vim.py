"""ViM (Wang et al., 2022): the length of features outside their principal space as one more logit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from slu.artifacts import stored
from slu.baselines.features import WIDTH, FeatureData, FeatureMethod, Features, Layer, check_logits
from slu.budgets import Cost, Size
from slu.checks import whole
from slu.data import Batch
from slu.errors import ModelError, NumericalError, SettingError
from slu.gradients import Forward
from slu.likelihoods import Likelihood

_NO_RANK = 1e-12  # of the largest eigenvalue; below it is rounding, in float32
_SMALLEST = 1e-7  # mean length outside the principal space beside that of the features; below it is rounding


def usual_dimension(width: int) -> int:
    """Of the principal space: 1,000 from 2,048 features on, 512 from 768 on, else half of them.

    >>> [usual_dimension(width) for width in (2048, 768, 512, 5)]
    [1000, 512, 256, 2]
    """
    return 1000 if width >= 2048 else 512 if width >= 768 else width // 2


@final
class ViM(FeatureMethod):
    """Are the features outside the space in which those of the data lie, and are the logits small?

    With logits f = W h + b of features h, these are measured from o = -W⁺ b. The principal space has the leading
    eigenvectors of Σ (h - o)(h - o)ᵀ, R are the others, and the score is α ‖Rᵀ(h - o)‖ - log Σ exp f, where
    α = Σ max f / Σ ‖Rᵀ(h - o)‖ over the data. For classification only.

    Args:
        model, likelihood, forward: As of `FeatureMethod`.
        dimension: Of the principal space, below d; None for `usual_dimension`, or half of the features' rank where that
            leaves nothing outside, as with few points.
        features: As of `FeatureMethod`, the name of the nn.Linear that gives the logits.

    Cost: two passes; (d - dimension + 1) d numbers kept in float64, four times d² while fitting.

    Numerics: pseudo-inverse and eigenvectors in float64 on the CPU.
    """

    reading = "vim"
    passes = 2
    kept: ClassVar = {"offset": (WIDTH,), "residual": (None, WIDTH), "alpha": (1,)}
    stored = ("dimension",)

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        dimension: int | None = None,
        features: str | None = None,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(model, likelihood, features, forward)
        self._check_classes()
        check_linear(self)
        self.dimension = None if dimension is None else whole("dimension", dimension, least=1)

    def _cost(self, size: Size) -> Cost:
        width = self._width()
        rows = max(width - (usual_dimension(width) if self.dimension is None else self.dimension), 1)
        kept, batch = 8 * ((rows + 1) * width + 1), 8 * size.batch * (3 * width + size.outputs)
        return Cost(kept, kept + 8 * 4 * width**2 + batch, kept + batch, self.passes)

    def _state(self, data: FeatureData) -> dict[str, Tensor]:
        offset = _offset(data.layer)
        products = offset.new_zeros(len(offset), len(offset))
        for each in data:
            _check_layer(each, data.layer)
            centred = each.values - offset
            products += centred.T @ centred
        values, vectors = torch.linalg.eigh(products.cpu())  # the smallest eigenvalues come first
        dimension = self._dimension(values)
        residual = vectors[:, : len(values) - dimension].T.contiguous().to(products.device)
        logits, outside, lengths = (offset.new_zeros(()) for _ in range(3))
        for each in data:
            centred = each.values - offset
            logits += each.outputs.amax(1).sum()
            outside += (centred @ residual.T).norm(dim=1).sum()
            lengths += centred.norm(dim=1).sum()
        if not bool(outside > _SMALLEST * lengths):
            raise NumericalError(
                f"the features of the data lie in their principal space of dimension {dimension}, so the length "
                f"outside it says nothing; take dimension= below the rank of the {len(offset)} features"
            )
        if not bool(logits > 0):
            raise NumericalError(
                f"the largest logits average {float(logits) / data.points:.3g}; the length of features is matched to "
                "them, so they must be positive. Add a constant to all logits with forward="
            )
        return {"offset": offset, "residual": residual, "alpha": (logits / outside)[None]}

    def _dimension(self, eigenvalues: Tensor) -> int:
        """Of the principal space, for the eigenvalues of the features."""
        width = len(eigenvalues)
        if self.dimension is None:
            rank = int((eigenvalues > _NO_RANK * eigenvalues[-1]).sum())
            return usual_dimension(width) if usual_dimension(width) < rank else rank // 2
        if self.dimension >= width:
            raise SettingError(f"dimension={self.dimension} leaves nothing of {width} features outside; lower it")
        return self.dimension

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        stored.check_orthonormal(state["residual"], "residual")
        stored.tensor(state, "alpha", (1,), above=0.0)

    def _score(self, state: Mapping[str, Tensor], layer: Layer, batch: Batch) -> Tensor:
        features = layer(batch)
        outside = ((features.values - state["offset"]) @ state["residual"].T).norm(dim=1)
        return state["alpha"] * outside - features.outputs.logsumexp(1)


def check_linear(method: FeatureMethod) -> None:
    """Refuse a named module that is no nn.Linear, where its weights are needed."""
    features = method.features
    module = None if features is None else method.network.model.get_submodule(features)
    if module is not None and not isinstance(module, nn.Linear):
        raise SettingError(
            f"{type(method).__name__} needs the weights of the nn.Linear that gives the logits, features={features!r} "
            f"is a {type(module).__name__}; name the former, or use Mahalanobis or KNN"
        )


def _offset(layer: Layer) -> Tensor:
    """(d,) -W⁺ b, where the logits are 0 or as small as possible."""
    assert isinstance(layer.module, nn.Linear)
    weight, bias = layer.module.weight.detach(), layer.module.bias
    if bias is None:
        return weight.new_zeros(weight.shape[1], dtype=torch.float64)
    return -(torch.linalg.pinv(weight.double().cpu()) @ bias.detach().double().cpu()).to(weight.device)


def _check_layer(features: Features, layer: Layer) -> None:
    check_logits(features.outputs)
    assert isinstance(layer.module, nn.Linear)
    if layer.module.out_features != features.outputs.shape[1]:
        raise ModelError(
            f"{layer.words} has {layer.module.out_features} outputs and the model {features.outputs.shape[1]}; ViM "
            "needs the layer that gives the logits: name it with features="
        )
