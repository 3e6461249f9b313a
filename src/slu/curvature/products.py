"""Products with the curvature of the loss over a data set: J v, Jᵀ u and H v, batch by batch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from slu.curvature.root import Numbered, OutputSpace
from slu.data.batches import Batch
from slu.data.fingerprint import CopyCounter, Fingerprint
from slu.data.structure import Inputs
from slu.errors import DataError, ModelCallError, ModelError
from slu.gradients.network import Network, pull_back
from slu.likelihoods import Likelihood
from slu.processes import ALONE, Processes

log = logging.getLogger(__name__)

Pullback = Callable[[Tensor], dict[str, Tensor]]


class Curvature:
    """G over a loader: an operator of shape (p, p) with `@`, a sum over data and never a mean.

    Kinds, with J the Jacobian of a point and ℓ its loss:
        ggn: Σ Jᵀ H J, H the likelihood's Hessian in the outputs (the generalized Gauss-Newton).
        fisher: Σ Jᵀ g gᵀ J, g = ∇ℓ in the outputs at one label sampled from the model; its mean
            over seeds is the GGN. The label is a function of the seed, of the point's content, and of which copy of
            it it is in the pass.
        empirical-fisher: the same with the data's own targets.
        hessian: Σ ∇²ℓ with the data's targets; may have negative eigenvalues.

    Args:
        network: The function to differentiate.
        likelihood: The loss in output space.
        data: A loader of batches; every product is one pass, and every pass must see the same
            points, in any order and any batches.
        kind: One of the above.
        seed: For sampled labels.
        processes: Those that share the data; a product is the sum over all of them.

    Cost: one pass over the data per product (and column); about 5/3 of a gradient over the same
    data (Linearizer). Memory: the result (p), one batch's gradient (p) and activations; with the
    kind "fisher" 16 to 32 bytes per distinct point (`CopyCounter`).

    Numerics: sums over batches are kept in at least float32, whatever the model computes in.
    """

    def __init__(
        self, network: Network, likelihood: Likelihood, data: Any, *,
        kind: str = "ggn", seed: int = 0, processes: Processes = ALONE,
    ) -> None:  # fmt: skip
        self._network = network
        self._space = OutputSpace(likelihood, kind, seed, grid=network.grid)
        self._data = data
        self._linearize = Linearizer(network)
        self._processes = processes
        self._first: Fingerprint | None = None
        self.points = 0
        """n, of all processes, known after the first product."""
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
    def seen(self) -> Fingerprint | None:
        """What the first pass of this process saw, and every other must see; None before it."""
        return self._first

    def expect(self, seen: Fingerprint | None, outputs: int, passes: int, points: int) -> None:
        """Go on where an earlier run stopped: the data must be what it saw, if that is known."""
        self._first, self._space.outputs, self.passes, self.points = seen, outputs, passes, points

    @property
    def probabilities(self) -> bool:
        """Whether the outputs of the first batch were probabilities already."""
        return self._space.probabilities

    @property
    def rank_bound(self) -> int:
        """The rank that the data allow, known after the first product: n·t, or n from one label per point."""
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
        seen, copies = Fingerprint(), CopyCounter()
        for batch in self._network.batches(self._data, purpose="fitting"):
            outputs = points = None  # copies are counted once per batch, however many columns there are
            for column, result in zip(columns, results, strict=True):
                outputs, product, points = self._batch_product(batch, selection.views(column), points, copies)
                for name, place in selection.views(result).items():
                    # Popped, so that each piece of the gradient is freed once it is added.
                    place += product.pop(name)
            assert outputs is not None and points is not None
            if self._first is None and seen.points < 2:
                # Before k passes are paid for, not at the first query; hold-out may leave one point of the first batch.
                self._network.check_pointwise(batch.inputs, outputs)
            self._space.note(seen, outputs, batch, points)
        self.passes += 1
        if self._first is None:
            self._first = seen
        seen.check_same(self._first)
        self._pool(results)

    def _pool(self, results: list[Tensor]) -> None:
        assert self._first is not None
        told = self._processes.gathered("points of a product", (self._first.points, self.outputs))
        self.points, self._space.outputs = sum(points for points, _ in told), max(outputs for _, outputs in told)
        self._processes.add_up(results)

    def _batch_product(
        self, batch: Batch, direction: dict[str, Tensor], points: Numbered | None, copies: CopyCounter
    ) -> tuple[Tensor, dict[str, Tensor], Numbered]:
        if self._space.kind == "hessian":
            outputs, product = hessian_product(
                self._network, batch.inputs, lambda f: self._space.loss(f, batch).sum(), direction
            )
            self._space.check(outputs, batch)
            return outputs, product, points or self._space.numbered(batch, outputs, copies)
        outputs, tangent, pullback = self._linearize(batch.inputs, direction)
        self._space.check(outputs, batch)
        fixed = outputs.detach()
        points = points or self._space.numbered(batch, fixed, copies)
        if self._space.kind == "ggn":
            cotangent = self._space.likelihood(fixed, batch).hessian_product(fixed, tangent)
        else:
            gradient = self._space.gradients(fixed, batch, points)[:, 0]
            cotangent = gradient * (gradient * tangent).sum(1, keepdim=True)
        return fixed, pullback(cotangent), points


class Linearizer:
    """Linearizes a network along one direction of its parameters, over a whole batch.

    One forward pass carries the tangent along and records the graph for the pullback, so that
    G v = Jᵀ H J v costs one forward less than a separate jvp and vjp. An operation without a
    forward-mode derivative switches the object to differentiating the pullback instead, which
    needs only second reverse derivatives; that switch is remembered. So does a pullback that
    fails because it was recorded along with a tangent (activation checkpointing, sparse
    embeddings): that batch is then pulled back through a second forward pass.

    Cost: with F a forward pass, about F + 2F for the tangent and 2F for the pullback; a plain
    gradient is F + 2F. Memory: activations of one batch, their tangents, and one gradient.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._forward_mode = True

    def __call__(self, inputs: Inputs, direction: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Pullback]:
        """Outputs f (b, t), tangents J v (b, t), and u ↦ Jᵀ u by parameter names; use it once."""
        if self._forward_mode:
            try:
                return self._by_forward_mode(inputs, direction)
            except (NotImplementedError, ModelCallError) as reason:
                if isinstance(reason, ModelCallError) and not isinstance(reason.__cause__, NotImplementedError):
                    raise
                log.info("no forward-mode derivative (%s); going by second reverse derivatives", reason)
                self._forward_mode = False
        return self._by_reverse_mode(inputs, direction)

    def _by_forward_mode(self, inputs: Inputs, direction: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Pullback]:
        leaves = _leaves(self._network)
        with forward_ad.dual_level():
            duals = _duals(leaves, direction)
            primal, tangent = forward_ad.unpack_dual(self._network.outputs(inputs, duals))
        # A tangent of None means the outputs do not depend on the selected parameters.
        tangent = torch.zeros_like(primal) if tangent is None else tangent.detach()
        return primal, tangent, lambda cotangent: self._pull_back_or_again(inputs, primal, leaves, cotangent)

    def _pull_back_or_again(
        self, inputs: Inputs, outputs: Tensor, leaves: dict[str, Tensor], cotangent: Tensor
    ) -> dict[str, Tensor]:
        try:
            return pull_back(outputs, leaves, cotangent)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as reason:
            log.info("no pullback beside a tangent (%s); going by second reverse derivatives", reason)
            self._forward_mode = False
        return pull_back(self._network.outputs(inputs, leaves), leaves, cotangent)

    def _by_reverse_mode(self, inputs: Inputs, direction: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Pullback]:
        leaves = _leaves(self._network)
        outputs = self._network.outputs(inputs, leaves)
        # Jᵀ u is linear in u, so its derivative in u along v is J v, whatever u is.
        dummy = torch.zeros_like(outputs, requires_grad=True)
        tangent = torch.zeros_like(outputs)
        with _differentiated_twice():
            gradients, along = _differentiable(pull_back(outputs, leaves, dummy, create_graph=True), direction)
            if gradients:
                (tangent,) = torch.autograd.grad(gradients, dummy, along, retain_graph=True)
        return outputs, tangent.detach(), lambda cotangent: pull_back(outputs, leaves, cotangent)


def _leaves(network: Network) -> dict[str, Tensor]:
    return {name: value.requires_grad_() for name, value in network.parameters().items()}


def _duals(leaves: Mapping[str, Tensor], direction: Mapping[str, Tensor]) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        # The first dual number makes torch compile its own rules with a deprecated function of its own.
        warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
        return {name: forward_ad.make_dual(leaf, direction[name].to(leaf.dtype)) for name, leaf in leaves.items()}


def _differentiable(
    gradients: Mapping[str, Tensor], direction: Mapping[str, Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients that can be differentiated again, and the direction in these; a constant one has no derivative."""
    names = [name for name, gradient in gradients.items() if gradient.requires_grad]
    return [gradients[name] for name in names], [direction[name].to(gradients[name].dtype) for name in names]


@contextmanager
def _differentiated_twice() -> Iterator[None]:
    """Says what to do where torch has no second derivative of a step."""
    try:
        yield
    except NotImplementedError as reason:
        raise ModelError(
            f"a step of the model cannot be differentiated twice, as products with its curvature need: {reason} "
            "SLU with solver='stream' and curvature='ggn', its defaults, takes gradients alone; otherwise replace the "
            "step, an nn.EmbeddingBag by nn.Embedding and a mean"
        ) from reason


def hessian_product(
    network: Network, inputs: Inputs, loss: Callable[[Tensor], Tensor], direction: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs, and the Hessian of a loss of them times a direction, by two reverse passes.

    Cost: about twice a gradient in time and in activations, and two gradients of memory.
    """
    leaves = _leaves(network)
    outputs = network.outputs(inputs, leaves)
    total = loss(outputs)
    with _differentiated_twice():
        slopes, along = _differentiable(pull_back(total, leaves, torch.ones_like(total), create_graph=True), direction)
        if not slopes:
            return outputs, {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        products = torch.autograd.grad(slopes, list(leaves.values()), along, materialize_grads=True)
    return outputs, dict(zip(leaves, products, strict=True))
