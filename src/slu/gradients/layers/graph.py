"""The graph that autograd recorded of a forward pass: what each parameter went into.

Nothing is hooked or replaced to see it: autograd's own record is complete, so whatever a model
does with its weights (layers, tied weights, functions called on them, several calls) is an edge of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor
from torch.autograd.graph import GradientEdge

Node: TypeAlias = Any
"""A step of the graph; its saved tensors are attributes that torch's stubs do not know."""

Place: TypeAlias = tuple[int, int]
"""A tensor of the forward pass: which step gave it, and the how-manieth of its outputs it is."""

_LEAF = "torch::autograd::AccumulateGrad"

# Steps that pick elements by numbers, which may have been read off the data: they count among the shapes.
_PICKS = {
    "SelectBackward0": "_saved_index",
    "SliceBackward0": "_saved_start",
    "SelectScatterBackward0": "_saved_index",
    "SliceScatterBackward0": "_saved_start",
    "AsStridedBackward0": "_saved_storage_offset",
    "RollBackward0": "_saved_shifts",
}


@dataclass(frozen=True)
class User:
    """A step that takes a tensor, and as which of its operands."""

    step: int
    operand: int


@dataclass(frozen=True)
class Graph:
    """Steps in an order that is the same for the same structure.

    Attributes:
        nodes: The steps.
        operands: For each the places it takes; None for what is not differentiated, data for example.
        users: For each place, who takes it.
        leaves: The steps that stand for parameters, by name; one that outputs do not depend on has none.
        structure: Equal for two graphs of the same steps and edges.
        shapes: Equal for two graphs of the same structure if all their tensors have the same shapes.
    """

    nodes: tuple[Node, ...]
    operands: tuple[tuple[Place | None, ...], ...]
    users: Mapping[Place, list[User]]
    leaves: Mapping[str, int]
    structure: tuple[Any, ...]
    shapes: tuple[Any, ...]

    def shape(self, place: Place) -> tuple[int, ...]:
        """The shape of a tensor of the forward pass."""
        return tuple(self.nodes[place[0]]._input_metadata[place[1]].shape)

    def edge(self, place: Place) -> GradientEdge:
        """What `torch.autograd.grad` takes for a tensor that nobody holds any more."""
        return GradientEdge(self.nodes[place[0]], place[1])

    def unary(self, step: int) -> bool:
        """Whether a step has one differentiable operand alone."""
        return sum(place is not None for place in self.operands[step]) == 1

    def outputs(self, step: int) -> list[Place]:
        """The tensors a step gave, as far as anybody takes them."""
        every = [(step, each) for each in range(len(self.nodes[step]._input_metadata))]
        return [place for place in every if place in self.users]


def walk(outputs: Tensor, leaves: Mapping[str, Tensor]) -> Graph:
    """The graph beneath outputs.

    Cost: a microsecond or two a step.
    """
    names = {id(leaf): name for name, leaf in leaves.items()}
    nodes: list[Node] = []
    found: dict[Node, int] = {}
    waiting: list[Node] = []

    def index(node: Node) -> int:
        if node not in found:
            found[node] = len(nodes)
            nodes.append(node)
            waiting.append(node)
        return found[node]

    if outputs.grad_fn is not None:
        index(outputs.grad_fn)
    operands: dict[int, tuple[Place | None, ...]] = {}
    while waiting:
        node = waiting.pop()
        operands[found[node]] = tuple(
            None if below is None else (index(below), number) for below, number in node.next_functions
        )
    return _graph(nodes, [operands[step] for step in range(len(nodes))], names)


def _graph(nodes: list[Node], operands: list[tuple[Place | None, ...]], names: Mapping[int, str]) -> Graph:
    users: defaultdict[Place, list[User]] = defaultdict(list)
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
                users[operand].append(User(step, place))
    shapes = tuple(
        (*(tuple(each.shape) for each in node._input_metadata), _picked(node, kind))
        for node, kind in zip(nodes, kinds, strict=True)
    )
    return Graph(tuple(nodes), tuple(operands), dict(users), leaves, (tuple(kinds), tuple(operands)), shapes)


def _picked(node: Node, kind: str) -> Any:
    found = getattr(node, _PICKS[kind], None) if kind in _PICKS else None
    return tuple(found) if isinstance(found, list | tuple) else found
