"""Whether data may decide where a sample's rows stand, in a way that no shape tells."""

from __future__ import annotations

from torch.autograd.function import BackwardCFunction

from slu.gradients.layers.graph import Graph

# Beginnings of steps that pick elements by other tensors: where a sample's rows stand may then depend on the data.
# Of what is written into a view (CopySlices) nobody can tell where it went.
_MOVERS = (
    "Index", "Gather", "Scatter", "MaskedS", "Take", "Put", "Sort", "Topk", "RepeatInterleave", "PackPadded",
    "Embedding", "Segment", "torch::autograd::CopySlices",
)  # fmt: skip

# Products by which a constant, a matrix of zeros and ones for example, can move rows: which operands are multiplied.
_FACTORS = {
    "MmBackward0": (0, 1),
    "AddmmBackward0": (1, 2),
    "BmmBackward0": (0, 1),
    "BaddbmmBackward0": (1, 2),
    "MulBackward0": (0, 1),
}


def may_move(graph: Graph) -> bool:
    """Whether a step may put rows of samples anywhere: what was seen of one batch says nothing of the next.

    Nobody can tell what a function written in Python does. Whatever is made of parameters alone
    (a table of biases that is indexed) has no rows of samples to move.
    """
    return any(_picks(graph, step) or _multiplies(graph, step) for step in range(len(graph.nodes)))


def _picks(graph: Graph, step: int) -> bool:
    node = graph.nodes[step]
    if not (node.name().startswith(_MOVERS) or isinstance(node, BackwardCFunction)):
        return False
    return not all(below is None or _of_parameters(graph, below[0]) for below in graph.operands[step])


def _multiplies(graph: Graph, step: int) -> bool:
    """Whether a step multiplies rows of samples by a constant in a way that can exchange them.

    A matrix from the right, as of a frozen layer, leaves rows where they are, and so does a factor that does not
    spread what it is multiplied with. einsum takes its operands in either order.
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
