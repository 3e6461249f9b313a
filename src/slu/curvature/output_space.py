"""What the curvature of a kind is made of in output space: checked outputs, labels, square roots."""

from __future__ import annotations

import torch
from torch import Tensor

from slu.data.batches import Batch, check_finite
from slu.data.keys import sample_keys, uniforms
from slu.errors import DataError, unknown
from slu.likelihoods import Likelihood

# Each kind, and where its labels come from: the model's own prediction, or the data's targets.
CURVATURES = {"ggn": "model", "fisher": "model", "empirical-fisher": "targets", "hessian": "targets"}


class OutputSpace:
    """Everything about a batch that needs its outputs and targets but no derivative of the network.

    Args:
        likelihood: The loss.
        kind: A curvature of the table.
        seed: For what is drawn, each a function of the seed and of the point's content.
        draws: For the kind "fisher" how many labels a point, one unless given; for "ggn" how many random mixtures of
            the columns of L instead of all columns.
    """

    def __init__(self, likelihood: Likelihood, kind: str, seed: int, draws: int | None = None) -> None:
        if kind not in CURVATURES:
            raise unknown("curvature", kind, CURVATURES)
        self.likelihood = likelihood
        self.kind = kind
        self.outputs = 0
        self.draws = draws
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
        found = []
        for uniform in self._drawn(outputs, batch, self.draws or 1, "labels").unbind(1):
            losses = self.likelihood.loss(leaf, self.likelihood.sample(outputs, uniform))
            found.append(torch.autograd.grad(losses.sum(), leaf)[0])
        return torch.stack(found, 1) / len(found) ** 0.5

    def roots(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(b, q, t) vectors u with Σ u uᵀ the curvature in the outputs: columns of L, mixtures of them, or gradients.

        A mixture is L ε with random signs ε: E L ε εᵀ Lᵀ = L Lᵀ = H, as for the gradient at a label drawn from the
        model, but ‖L ε‖² has the mean tr H and varies by less than that: only products of different columns do.
        At a confident prediction a drawn label is nearly always the predicted one, whose gradient is next to nothing,
        and once in a long while another, whose gradient is large: its squared length varies by ten to a hundred times
        its mean. With two classes a mixture is exact.

        Raises:
            DataError: The Hessian of the loss in the parameters has no such root.
        """
        if self.kind == "hessian":
            raise DataError("curvature='hessian' is no sum of squares; use curvature='ggn'")
        if self.kind != "ggn":
            return self.gradients(outputs, batch)
        points, count = outputs.shape
        if self.draws is None:
            mixtures = torch.eye(count, dtype=outputs.dtype, device=outputs.device)[:, None].expand(
                count, points, count
            )
        else:
            signs = (self._drawn(outputs, batch, self.draws, "signs") - 0.5).sign().to(outputs)
            mixtures = signs.transpose(0, 1) / self.draws**0.5
        found = self.likelihood.factor_product(outputs, mixtures)
        if found.shape != mixtures.shape:
            raise DataError(
                f"the likelihood's factor_product made {tuple(found.shape)} of vectors {tuple(mixtures.shape)}; L "
                "takes (..., points, outputs) to the same shape"
            )
        return found.transpose(0, 1)

    def _drawn(self, outputs: Tensor, batch: Batch, draws: int, purpose: str) -> Tensor:
        """(b, draws, t) numbers in (0, 1) that belong to the points and not to the batch."""
        points, count = outputs.shape
        return uniforms(self.keys(batch, points), draws * count, self._seed, purpose).view(points, draws, count)
