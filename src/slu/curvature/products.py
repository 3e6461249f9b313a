"""The curvature of the loss over a data set, as a matrix one can only multiply with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slu.curvature.output_space import OutputSpace
from slu.data.batches import Batch, batches
from slu.data.fingerprint import Fingerprint
from slu.errors import DataError
from slu.gradients.linearize import Linearizer, hessian_product
from slu.gradients.network import Network
from slu.likelihoods import Likelihood


class Curvature:
    """G over a loader: an operator of shape (p, p) with `@`, a sum over data and never a mean.

    Kinds, with J the Jacobian of a point and ℓ its loss:
        ggn: Σ Jᵀ H J, H the likelihood's Hessian in the outputs (the generalized Gauss-Newton).
        fisher: Σ Jᵀ g gᵀ J, g = ∇ℓ in the outputs at one label sampled from the model; its mean
            over seeds is the GGN. The label is a function of seed and content of the point.
        empirical-fisher: the same with the data's own targets.
        hessian: Σ ∇²ℓ with the data's targets; may have negative eigenvalues.

    Args:
        network: The function to differentiate.
        likelihood: The loss in output space.
        data: A loader of batches; every product is one pass, and every pass must see the same
            points, in any order and any batches.
        kind: One of the above.
        seed: For sampled labels.

    Cost: one pass over the data a product (and column); about 5/3 of a gradient over the same
    data (Linearizer). Memory: the result (p), one batch's gradient (p) and activations.

    Numerics: sums over batches are kept in at least float32, whatever the model computes in.
    """

    def __init__(
        self, network: Network, likelihood: Likelihood, data: Any, *, kind: str = "ggn", seed: int = 0
    ) -> None:
        self._network = network
        self._space = OutputSpace(likelihood, kind, seed)
        self._data = data
        self._linearize = Linearizer(network)
        self._first: Fingerprint | None = None
        self.passes = 0

    @property
    def outputs(self) -> int:
        """t, known after the first product."""
        return self._space.outputs

    @property
    def shape(self) -> tuple[int, int]:
        return self._network.selection.count, self._network.selection.count

    @property
    def dtype(self) -> torch.dtype:
        return self._network.selection.dtype

    @property
    def device(self) -> torch.device:
        return self._network.selection.device

    @property
    def points(self) -> int:
        """n, known after the first product."""
        return 0 if self._first is None else self._first.points

    @property
    def seen(self) -> Fingerprint | None:
        """What the first pass saw, and every other must see; None before it."""
        return self._first

    def expect(self, seen: Fingerprint, outputs: int, passes: int) -> None:
        """Go on where an earlier run stopped: the data must be what it saw."""
        self._first, self._space.outputs, self.passes = seen, outputs, passes

    @property
    def rank_bound(self) -> int:
        """The rank that the data allow, known after the first product: n·t, or n from one label a point."""
        each = {"ggn": self.outputs, "hessian": self.shape[0]}.get(self._space.kind, 1)
        return min(self.points * each, self.shape[0])

    def __matmul__(self, vector: Tensor) -> Tensor:
        """G v for v of shape (p,), or G V for (p, c): one pass over the data in either case."""
        if vector.dim() not in (1, 2) or len(vector) != self.shape[1]:
            raise DataError(f"cannot multiply {self.shape} with {tuple(vector.shape)}")
        if vector.numel() == 0:
            return torch.zeros_like(vector, dtype=self.dtype)
        with self._network.evaluating():
            # Made in here: tensors of the user's inference mode could not be added to.
            columns = vector.unbind(1) if vector.dim() == 2 else (vector,)
            results = [torch.zeros_like(column, dtype=self.dtype) for column in columns]
            self._pass(columns, results)
        return torch.stack(results, 1) if vector.dim() == 2 else results[0]

    def _pass(self, columns: tuple[Tensor, ...], results: list[Tensor]) -> None:
        selection = self._network.selection
        seen = Fingerprint()
        for batch in batches(self._data, self.device):
            outputs = None
            for column, result in zip(columns, results, strict=True):
                outputs, product = self._batch_product(batch, selection.views(column))
                for name, place in selection.views(result).items():
                    # Popped, so that each piece of the gradient is freed once it is added.
                    place += product.pop(name)
            assert outputs is not None
            if self._first is None and not seen.points:
                # Before k passes are paid for, not at the first query.
                self._network.check_pointwise(batch.inputs, outputs)
            seen.add(self._space.keys(batch, len(outputs)), outputs)
        self.passes += 1
        if self._first is None:
            self._first = seen
        seen.check_same(self._first)

    def _batch_product(self, batch: Batch, direction: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        if self._space.kind == "hessian":
            outputs, product = hessian_product(
                self._network, batch.inputs, lambda f: self._space.loss(f, batch).sum(), direction
            )
            self._space.check(outputs, batch)
            return outputs, product
        outputs, tangent, pullback = self._linearize(batch.inputs, direction)
        self._space.check(outputs, batch)
        fixed = outputs.detach()
        if self._space.kind == "ggn":
            cotangent = self._space.likelihood.hessian_product(fixed, tangent)
        else:
            gradient = self._space.gradients(fixed, batch)[:, 0]
            cotangent = gradient * (gradient * tangent).sum(1, keepdim=True)
        return fixed, pullback(cotangent)
