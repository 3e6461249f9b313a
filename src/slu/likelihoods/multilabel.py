"""Independent sigmoids: t yes-or-no questions about one input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from slu.errors import DataError, SettingError
from slu.likelihoods.leading import mixtures


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

    def leading(self, outputs: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Directions u (b, m, t) of unit length and √λ (b, m); m is `count`, at most t.

        H is diagonal, and labels are many: one of them, though the most undecided, says little of the others. For
        m < t these are m mixtures of all labels, each with the root of its entry of H and a fixed sign, and
        λ = tr H / m, so that Σ λ u uᵀ has the diagonal of H. For m = t they are the labels themselves.

        Numerics: float64; relative to the largest entry, by logarithms, which do not underflow.
        """
        wide, size = outputs.double(), outputs.shape[1]
        logs = functional.logsigmoid(wide) + functional.logsigmoid(-wide) + self._weights(wide).log()
        if count >= size:
            labels = torch.eye(size, dtype=outputs.dtype, device=outputs.device)
            return labels.expand(len(outputs), -1, -1), (0.5 * logs).exp()
        largest = logs.amax(1, keepdim=True)
        relative = (0.5 * (logs - largest)).exp()
        directions = mixtures(count, size).to(wide)[None] * relative[:, None]
        directions = directions / torch.linalg.vector_norm(directions, dim=-1, keepdim=True)
        root = (0.5 * largest).exp() * torch.linalg.vector_norm(relative, dim=-1, keepdim=True) / count**0.5
        return directions.to(outputs.dtype), root.expand(-1, count)

    def _weights(self, outputs: Tensor) -> Tensor:
        if self.weights is None:
            return outputs.new_ones(())
        if len(self.weights) != outputs.shape[-1]:
            raise DataError(
                f"{len(self.weights)} label weights were given, the network has {outputs.shape[-1]} outputs"
            )
        return self.weights.to(outputs)
