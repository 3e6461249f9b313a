"""Derivatives of a whole batch: J v, and then Jᵀ u from the same forward pass."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.autograd import forward_ad

from slu.data.batches import Inputs
from slu.gradients.network import Network

log = logging.getLogger(__name__)

Pullback = Callable[[Tensor], dict[str, Tensor]]


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
            except NotImplementedError as reason:
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
        pulled = pull_back(outputs, leaves, dummy, create_graph=True)
        pairs = [(pulled[name], direction[name].to(pulled[name].dtype)) for name in leaves]
        pairs = [(gradient, part) for gradient, part in pairs if gradient.requires_grad]
        if not pairs:
            return outputs, torch.zeros_like(outputs), _pullback(outputs, leaves)
        (tangent,) = torch.autograd.grad([g for g, _ in pairs], dummy, [v for _, v in pairs], retain_graph=True)
        return outputs, tangent.detach(), _pullback(outputs, leaves)


def _leaves(network: Network) -> dict[str, Tensor]:
    return {name: value.requires_grad_() for name, value in network.parameters().items()}


def _duals(leaves: Mapping[str, Tensor], direction: Mapping[str, Tensor]) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        # The first dual number makes torch compile its own rules with a deprecated function of its own.
        warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
        return {name: forward_ad.make_dual(leaf, direction[name].to(leaf.dtype)) for name, leaf in leaves.items()}


def _pullback(outputs: Tensor, leaves: dict[str, Tensor]) -> Pullback:
    return lambda cotangent: pull_back(outputs, leaves, cotangent)


def pull_back(
    outputs: Tensor,
    leaves: dict[str, Tensor],
    cotangent: Tensor,
    *,
    create_graph: bool = False,
    retain_graph: bool = False,
) -> dict[str, Tensor]:
    """Jᵀ u by parameter names, zero where the outputs do not depend on them; dense, also of sparse embeddings."""
    if not outputs.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    values = list(leaves.values())
    found = torch.autograd.grad(
        outputs,
        values,
        cotangent.to(outputs.dtype),
        create_graph=create_graph,
        retain_graph=retain_graph or create_graph,
        materialize_grads=True,
    )
    return dict(zip(leaves, (grad.to_dense() if grad.is_sparse else grad for grad in found), strict=True))


def hessian_product(
    network: Network, inputs: Inputs, loss: Callable[[Tensor], Tensor], direction: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs, and the Hessian of a loss of them times a direction, by two reverse passes.

    Cost: about twice a gradient in time and in activations, and two gradients of memory.
    """
    leaves = _leaves(network)
    outputs = network.outputs(inputs, leaves)
    total = loss(outputs)
    slopes = pull_back(total, leaves, torch.ones_like(total), create_graph=True)
    # A parameter in which the loss is linear has a constant slope: nothing to differentiate.
    pairs = [(slope, direction[name].to(slope.dtype)) for name, slope in slopes.items() if slope.requires_grad]
    if not pairs:
        return outputs, {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    values = list(leaves.values())
    found = torch.autograd.grad([g for g, _ in pairs], values, [v for _, v in pairs], materialize_grads=True)
    return outputs, dict(zip(leaves, found, strict=True))
