"""What the curvature of a kind is made of in output space: checked outputs, labels, square roots."""

from __future__ import annotations

import torch
from torch import Tensor

from slu.curvature.batches import Batch, check_finite
from slu.curvature.keys import sample_keys, uniforms
from slu.errors import DataError, unknown
from slu.likelihoods import Likelihood

# Each kind, and where its labels come from: the model's own prediction, or the data's targets.
CURVATURES = {"ggn": "model", "fisher": "model", "empirical-fisher": "targets", "hessian": "targets"}


class OutputSpace:
    """Everything about a batch that needs its outputs and targets but no derivative of the network.

    Args:
        likelihood: The loss.
        kind: A curvature of the table.
        seed: For sampled labels, each a function of the seed and of the point's content.
        labels: How many are drawn a point for the kind "fisher".
    """

    def __init__(self, likelihood: Likelihood, kind: str, seed: int, labels: int = 1) -> None:
        if kind not in CURVATURES:
            raise unknown("curvature", kind, CURVATURES)
        self.likelihood = likelihood
        self.kind = kind
        self.outputs = 0
        self.labels = labels
        self._seed = seed

    def check(self, outputs: Tensor, batch: Batch) -> None:
        """Refuse outputs that are not finite, or of another number a point than before."""
        check_finite(outputs.detach(), f"the model's outputs on batch {batch.index}")
        if self.outputs not in (0, outputs.shape[1]):
            raise DataError(f"batch {batch.index} has {outputs.shape[1]} outputs a point, earlier ones {self.outputs}")
        self.outputs = outputs.shape[1]

    def keys(self, batch: Batch, points: int) -> Tensor:
        """(b,) keys of all that the curvature depends on."""
        content = (batch.inputs, batch.targets) if CURVATURES[self.kind] == "targets" else batch.inputs
        return sample_keys(content, points)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(b,) losses at the data's targets."""
        if batch.targets is None:
            raise DataError(
                f"curvature={self.kind!r} needs targets, but batch {batch.index} has inputs alone; "
                "use a loader of (inputs, targets), or curvature='ggn'"
            )
        return self.likelihood.loss(outputs, batch.targets)

    def gradients(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(b, m, t) gradients of the loss in the outputs, at m sampled labels or at the targets, over √m."""
        leaf = outputs.clone().requires_grad_()
        if self.kind != "fisher":
            return torch.autograd.grad(self.loss(leaf, batch).sum(), leaf)[0][:, None]
        count = outputs.shape[1]
        drawn = uniforms(self.keys(batch, len(outputs)), self.labels * count, self._seed, "labels")
        found = []
        for uniform in drawn.split(count, 1):
            losses = self.likelihood.loss(leaf, self.likelihood.sample(outputs, uniform))
            found.append(torch.autograd.grad(losses.sum(), leaf)[0])
        return torch.stack(found, 1) / self.labels**0.5

    def roots(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(b, q, t) vectors u with Σ u uᵀ the curvature in the outputs: columns of L, or gradients.

        Raises:
            DataError: The Hessian of the loss in the parameters has no such root.
        """
        if self.kind == "hessian":
            raise DataError("curvature='hessian' is no sum of squares; use curvature='ggn'")
        if self.kind == "ggn":
            points, count = outputs.shape
            unit = torch.eye(count, dtype=outputs.dtype, device=outputs.device)[:, None].expand(count, points, count)
            return self.likelihood.factor_product(outputs, unit).transpose(0, 1)
        return self.gradients(outputs, batch)
