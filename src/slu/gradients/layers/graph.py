"""One forward pass of a batch, and the graph that autograd recorded of it: which steps take each parameter.

No hooks are needed: autograd's record is complete, so whatever a model does with its weights (layers, tied
weights, functions called on them, several calls) is an edge of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, saved_tensors_hooks

from slu.data.structure import Inputs
from slu.gradients.network import Network

Node: TypeAlias = Any
"""A step of the graph; its saved tensors are attributes that torch's stubs do not know."""

Place: TypeAlias = tuple[int, int]
"""A tensor of the forward pass: the step that gave it, and which of its outputs it is."""

_LEAF = "torch::autograd::AccumulateGrad"

# Steps that select elements by numbers, which may have been read off the data: they count among the shapes.
_OFFSETS = {
    "SelectBackward0": "_saved_index",
    "SliceBackward0": "_saved_start",
    "SelectScatterBackward0": "_saved_index",
    "SliceScatterBackward0": "_saved_start",
    "AsStridedBackward0": "_saved_storage_offset",
    "RollBackward0": "_saved_shifts",
}

# Beginnings of steps that select elements by other tensors: where an example's rows are may then depend on the
# data. For what is written into a view (CopySlices) the graph does not record the place.
_INDEXING = (
    "Index", "Gather", "Scatter", "MaskedS", "Take", "Put", "Sort", "Topk", "RepeatInterleave", "PackPadded",
    "Embedding", "Segment", "torch::autograd::CopySlices",
)  # fmt: skip

# Products by which a constant, a permutation matrix for example, can reorder rows: which operands are multiplied.
_FACTORS = {
    "MmBackward0": (0, 1),
    "AddmmBackward0": (1, 2),
    "BmmBackward0": (0, 1),
    "BaddbmmBackward0": (1, 2),
    "MulBackward0": (0, 1),
}

# Steps that pass a gradient on in the same memory: what they are pulled back to is a view of it.
_VIEWS = (
    "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "TransposeBackward0", "TransposeBackward1",
    "TBackward0", "PermuteBackward0", "SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0",
)  # fmt: skip


@dataclass(frozen=True)
class Graph:
    """Steps in an order that is the same for the same structure.

    Attributes:
        nodes: The steps.
        operands: For each the places it takes; None for what is not differentiated, data for example.
        users: For each place, the steps that take it, and as which of their operands.
        leaves: The steps that stand for parameters, by name; one that outputs do not depend on has none.
        structure: Equal for two graphs of the same steps and edges.
        shapes: Equal for two graphs of the same structure if all their tensors have the same shapes.
    """

    nodes: tuple[Node, ...]
    operands: tuple[tuple[Place | None, ...], ...]
    users: Mapping[Place, list[tuple[int, int]]]
    leaves: Mapping[str, int]
    structure: tuple[Any, ...]
    shapes: tuple[Any, ...]

    def shape(self, place: Place) -> tuple[int, ...]:
        """The shape of a tensor of the forward pass."""
        return tuple(self.nodes[place[0]]._input_metadata[place[1]].shape)

    def edge(self, place: Place) -> GradientEdge:
        """What `torch.autograd.grad` takes for a tensor to which there is no reference any more."""
        return GradientEdge(self.nodes[place[0]], place[1])

    def unary(self, step: int) -> bool:
        """Whether a step has one differentiable operand alone."""
        return sum(place is not None for place in self.operands[step]) == 1

    def outputs(self, step: int) -> list[Place]:
        """The tensors a step gave, as far as other steps take them."""
        every = [(step, each) for each in range(len(self.nodes[step]._input_metadata))]
        return [place for place in every if place in self.users]


def record_graph(outputs: Tensor, leaves: Mapping[str, Tensor]) -> Graph:
    """The graph beneath outputs.

    Cost: a microsecond or two per step.
    """
    names = {id(leaf): name for name, leaf in leaves.items()}
    nodes: list[Node] = []
    known: dict[Node, int] = {}
    waiting: list[Node] = []

    def index(node: Node) -> int:
        if node not in known:
            known[node] = len(nodes)
            nodes.append(node)
            waiting.append(node)
        return known[node]

    if outputs.grad_fn is not None:
        index(outputs.grad_fn)
    operands: dict[int, tuple[Place | None, ...]] = {}
    while waiting:
        node = waiting.pop()
        operands[known[node]] = tuple(
            None if below is None else (index(below), number) for below, number in node.next_functions
        )
    return _graph(nodes, [operands[step] for step in range(len(nodes))], names)


def _graph(nodes: list[Node], operands: list[tuple[Place | None, ...]], names: Mapping[int, str]) -> Graph:
    users: defaultdict[Place, list[tuple[int, int]]] = defaultdict(list)
    leaves: dict[str, int] = {}
    kinds: list[str] = []
    for step, node in enumerate(nodes):
        kind = node.name()
        if kind == _LEAF and id(node.variable) in names:
            kind = names[id(node.variable)]
            leaves[kind] = step
        kinds.append(kind)
        for place, operand in enumerate(operands[step]):
            if operand is not None:
                users[operand].append((step, place))
    shapes = tuple(
        (*(tuple(each.shape) for each in node._input_metadata), _offset(node, kind))
        for node, kind in zip(nodes, kinds, strict=True)
    )
    return Graph(tuple(nodes), tuple(operands), dict(users), leaves, (tuple(kinds), tuple(operands)), shapes)


def _offset(node: Node, kind: str) -> Any:
    saved = getattr(node, _OFFSETS[kind], None) if kind in _OFFSETS else None
    return tuple(saved) if isinstance(saved, list | tuple) else saved


class Recording:
    """Outputs of a batch at stand-ins for the parameters, and autograd's graph of how they were computed.

    Args:
        network: The function to differentiate.
        inputs: A batch.
        watch: Entered while the model is called, as of `Network.outputs`.

    Cost: one forward pass; its activations are held as long as this is.
    """

    def __init__(self, network: Network, inputs: Inputs, watch: AbstractContextManager[Any] | None = None) -> None:
        self.leaves = {name: value.requires_grad_() for name, value in network.parameters().items()}
        self.outputs = network.outputs(inputs, self.leaves, watch=watch)
        self.graph = record_graph(self.outputs, self.leaves)

    @property
    def examples(self) -> int:
        """b."""
        return len(self.outputs)

    @property
    def structure(self) -> tuple[Any, ...]:
        """Equal for two batches of equally many examples that took the same steps."""
        return self.examples, self.graph.structure

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal for two batches all of whose intermediate tensors had the same shapes."""
        return self.examples, self.graph.structure, self.graph.shapes

    def pull_back(
        self, places: Sequence[Place], vectors: Tensor, names: Sequence[str] = ()
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Gradients of Σ u·f in tensors of the forward pass, and in some of the parameters, for vectors u (b, t).

        Cost: one backward pass of the batch that leaves out the gradients in all other parameters.
        """
        if not places and not names:
            return [], {}
        where: list[Any] = [self.graph.edge(place) for place in places]
        gradients = torch.autograd.grad(
            self.outputs,
            where + [self.leaves[name] for name in names],
            vectors.to(self.outputs.dtype),
            retain_graph=True,
            allow_unused=True,
        )
        in_places, in_leaves = gradients[: len(places)], gradients[len(places) :]
        zeros, leaves = self.outputs.new_zeros, self.leaves
        return [
            zeros(self.graph.shape(place)) if each is None else each
            for place, each in zip(places, in_places, strict=True)
        ], {
            name: torch.zeros_like(leaves[name]) if each is None else each.to_dense() if each.is_sparse else each
            for name, each in zip(names, in_leaves, strict=True)
        }

    def visit_parameter_gradients(
        self, names: Sequence[str], vectors: Tensor, visit: Callable[[str, Tensor], None]
    ) -> None:
        """Gradients of Σ u·f in parameters, summed over the batch, each visited as it is computed and then freed.

        Cost: one backward pass; the gradients of few parameters are held at a time.
        """
        visiting = False

        def hook(name: str, gradient: Tensor) -> Tensor:
            nonlocal visiting
            if visiting:  # the visitor may pull gradients back itself
                return gradient
            visiting = True
            visit(name, gradient.to_dense() if gradient.is_sparse else gradient)
            visiting = False
            # What replaces it from here on takes no memory.
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


def kept_bytes(network: Network, inputs: Inputs) -> int:
    """Bytes of all that autograd keeps of a forward pass of a batch, parameters and inputs among it.

    Cost: one forward pass, its activations held.
    """
    kept: dict[int, torch.UntypedStorage] = {}  # held, because memory that is freed may be given to another tensor

    def pack(tensor: Tensor) -> Tensor:
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage
        return tensor.detach()  # a result that its own step keeps would never be freed

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        network.outputs(inputs, {name: value.requires_grad_() for name, value in network.parameters().items()})
    return sum(storage.nbytes() for storage in kept.values())


def gradient_numbers(graph: Graph, steps: Iterable[int]) -> dict[int, int]:
    """By step, the numbers of the gradient in its result, without those in the memory of another step's gradient.

    A linear layer of sequences is a product and a sum with the bias, and both results have one gradient.
    """
    every = set(steps)
    return {step: prod(graph.shape((step, 0))) for step in every if not _passed_on(graph, step, every)}


def _passed_on(graph: Graph, step: int, steps: Collection[int]) -> bool:
    """Whether the gradient in a step's result is that of one of the steps above, passed on in the same memory."""
    while len(users := graph.users.get((step, 0), ())) == 1:  # gradients of several users are added up to another
        (user, _), shape = users[0], graph.shape((step, 0))
        node = graph.nodes[user]
        adds = node.name() == "AddBackward0" and node._saved_alpha == 1 and graph.shape((user, 0)) == shape
        if not adds and node.name() not in _VIEWS:
            return False
        if user in steps:
            return True
        step = user
    return False


def may_reorder(graph: Graph) -> bool:
    """Whether the places of examples' rows may depend on the data, in a way that no shape shows.

    Then the layout of one batch need not hold for the next. A function written in Python may do anything. What is
    computed from parameters alone (a table of biases that is indexed) has no rows of examples.
    """
    return any(_indexes(graph, step) or _permutes(graph, step) for step in range(len(graph.nodes)))


def _indexes(graph: Graph, step: int) -> bool:
    node = graph.nodes[step]
    if not (node.name().startswith(_INDEXING) or isinstance(node, BackwardCFunction)):
        return False
    return not all(below is None or _of_parameters(graph, below[0]) for below in graph.operands[step])


def _permutes(graph: Graph, step: int) -> bool:
    """Whether a step multiplies rows of examples by a constant in a way that can exchange them.

    A matrix from the right, as of a frozen layer, leaves rows where they are, and so does a factor that does not
    broadcast what it is multiplied with. einsum takes its operands in either order.
    """
    kind = graph.nodes[step].name()
    if kind not in _FACTORS:
        return False
    left, right = (graph.operands[step][place] for place in _FACTORS[kind])
    other = left if right is None else right
    if other is None or (left is not None and right is not None):
        return False
    if kind in ("MmBackward0", "AddmmBackward0") and right is None:
        return False
    if kind == "MulBackward0" and graph.shape((step, 0)) == graph.shape(other):
        return False
    return not _of_parameters(graph, other[0])


def _of_parameters(graph: Graph, step: int) -> bool:
    """Whether no data went into a step."""
    seen, waiting = {step}, [step]
    while waiting:
        for below in graph.operands[waiting.pop()]:
            if below is None:
                return False
            if below[0] not in seen:
                seen.add(below[0])
                waiting.append(below[0])
    return True
