"""One forward pass of a batch, kept so that gradients can be pulled back to any of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from slu.data.batches import Inputs
from slu.gradients.layers.graph import Place, walk
from slu.gradients.network import Network


class Recording:
    """Outputs of a batch at stand-ins for the parameters, and autograd's graph of how they came about.

    Args:
        network: The function to differentiate.
        inputs: A batch.

    Cost: one forward pass; its activations are held as long as this is.
    """

    def __init__(self, network: Network, inputs: Inputs) -> None:
        self.leaves = {name: value.requires_grad_() for name, value in network.parameters().items()}
        self.outputs = network.outputs(inputs, self.leaves)
        self.graph = walk(self.outputs, self.leaves)

    @property
    def points(self) -> int:
        """b."""
        return len(self.outputs)

    @property
    def structure(self) -> tuple[Any, ...]:
        """Equal for two batches of equally many samples that went the same way."""
        return self.points, self.graph.structure

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal for two batches of which all tensors on the way had the same shapes."""
        return self.points, self.graph.structure, self.graph.shapes

    def pull(self, places: Sequence[Place], vectors: Tensor) -> list[Tensor]:
        """Gradients of Σ u·f in tensors of the forward pass, for vectors u (b, t).

        Cost: one backward pass of the batch that leaves out the gradients in the parameters.
        """
        if not places:
            return []
        found = torch.autograd.grad(
            self.outputs,
            [self.graph.edge(place) for place in places],
            vectors.to(self.outputs.dtype),
            retain_graph=True,
            allow_unused=True,
        )
        return [
            self.outputs.new_zeros(self.graph.shape(place)) if each is None else each
            for place, each in zip(places, found, strict=True)
        ]

    def pull_to_leaves(self, names: Sequence[str], vectors: Tensor, look: Callable[[str, Tensor], None]) -> None:
        """Gradients of Σ u·f in parameters, summed over the batch, each looked at as it arises and then let go.

        Cost: one backward pass; the gradients of few parameters are held at a time.
        """

        looking = False

        def hook(name: str, gradient: Tensor) -> Tensor:
            nonlocal looking
            if looking:  # whoever looks may pull gradients of their own
                return gradient
            looking = True
            look(name, gradient.to_dense() if gradient.is_sparse else gradient)
            looking = False
            # What stands for it from here on takes no memory.
            return gradient if gradient.is_sparse else gradient.new_zeros(()).expand_as(gradient)

        leaves = [self.leaves[name] for name in names]
        handles = [leaf.register_hook(partial(hook, name)) for name, leaf in zip(names, leaves, strict=True)]
        try:
            torch.autograd.grad(
                self.outputs, leaves, vectors.to(self.outputs.dtype), retain_graph=True, allow_unused=True
            )
        finally:
            for handle in handles:
                handle.remove()
