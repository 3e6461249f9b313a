"""Independent sigmoids: t yes-or-no questions about one input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from slu.errors import DataError, SettingError


class Multilabel:
    """Binary cross-entropy of each output: H = diag(w σ(f) σ(-f)), L its elementwise root.

    Args:
        weights: One positive weight per label, which multiplies its loss (class frequencies, for
            example); None for 1 everywhere.

    Numerics:
        σ(f) (1 - σ(f)) is computed as σ(f) σ(-f), which does not cancel for confident outputs.
    """

    def __init__(self, weights: Sequence[float] | Tensor | None = None) -> None:
        self.weights = None if weights is None else torch.as_tensor(weights, dtype=torch.float64).flatten()
        if self.weights is not None and not bool((self.weights.isfinite() & (self.weights > 0)).all()):
            raise SettingError(f"every weight must be positive and finite, got {self.weights.tolist()}")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if targets.dim() == 1 and outputs.shape[1] == 1:
            targets = targets.unsqueeze(1)
        if targets.shape != outputs.shape:
            raise DataError(
                f"multilabel needs targets in [0, 1] shaped like the outputs, {tuple(outputs.shape)}; "
                f"got {tuple(targets.shape)}"
            )
        losses = functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none")
        return (losses * self._weights(outputs)).sum(1)

    def hessian_product(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        return self._weights(outputs) * outputs.sigmoid() * (-outputs).sigmoid() * vectors

    def factor_product(self, outputs: Tensor, vectors: Tensor, *, transpose: bool = False) -> Tensor:
        del transpose  # L is diagonal
        # The root of each sigmoid separately: their product underflows first.
        half = (0.5 * (functional.logsigmoid(outputs) + functional.logsigmoid(-outputs))).exp()
        return self._weights(outputs).sqrt() * half * vectors

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """Labels 0 and 1; with weights w, their distance to the mean is divided by √w.

        A weighted loss is no longer the logarithm of the distribution it is sampled from: at
        plain labels its squared gradients would have the mean w² σ(f) σ(-f), not H.
        """
        labels = (uniform < outputs.sigmoid()).to(outputs.dtype)
        if self.weights is None:
            return labels
        return outputs.sigmoid() + (labels - outputs.sigmoid()) / self._weights(outputs).sqrt()

    def trace(self, outputs: Tensor) -> Tensor:
        """(b,) tr H, in float64."""
        wide = outputs.double()
        return (self._weights(wide) * wide.sigmoid() * (-wide).sigmoid()).expand_as(wide).sum(-1)

    def entropy(self, outputs: Tensor) -> Tensor:
        """(b,) summed over the labels, in nats, in float64; weights do not count."""
        wide = outputs.double()
        yes, no = functional.logsigmoid(wide), functional.logsigmoid(-wide)
        return -(yes.exp() * yes + no.exp() * no).sum(1)

    def leading(self, outputs: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Directions u (b, m, t) of unit length and √λ (b, m), largest first; m is `count`, at most t.

        H is diagonal: they are the labels with the largest entries, the most undecided ones if there are no weights.

        Numerics: float64; compared by logarithms, which do not underflow.
        """
        wide = outputs.double()
        logs = functional.logsigmoid(wide) + functional.logsigmoid(-wide) + self._weights(wide).log()
        values, places = logs.topk(min(count, outputs.shape[1]), -1)
        labels = outputs.new_zeros(*places.shape, outputs.shape[1]).scatter(-1, places[..., None], 1.0)
        return labels, (0.5 * values).exp()

    def _weights(self, outputs: Tensor) -> Tensor:
        if self.weights is None:
            return outputs.new_ones(())
        if len(self.weights) != outputs.shape[-1]:
            raise DataError(
                f"{len(self.weights)} label weights were given, the network has {outputs.shape[-1]} outputs"
            )
        return self.weights.to(outputs)
