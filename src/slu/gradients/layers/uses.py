"""Which steps of a graph have a formula, and where each parameter goes on its way to the outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slu.gradients.layers import convolution, elementwise, embedding, matrix, norms
from slu.gradients.layers.formula import Formula, Rule, Use
from slu.gradients.layers.graph import Graph, Node, Place

RULES: dict[str, Rule] = {
    "AddmmBackward0": matrix.affine,
    "MmBackward0": matrix.product,
    "ConvolutionBackward0": convolution.convolution,
    "EmbeddingBackward0": embedding.embedding,
    "NativeLayerNormBackward0": norms.layer_norm,
    "NativeGroupNormBackward0": norms.group_norm,
    "NativeBatchNormBackward0": norms.batch_norm,
    "AddBackward0": elementwise.added,
    "SubBackward0": elementwise.subtracted,
    "MulBackward0": elementwise.multiplied,
    "ExpandBackward0": elementwise.expanded,
    "PreluKernelBackward0": elementwise.bent,
}
"""From a step's name in autograd's graph to its formula; a new kind of layer is a row here."""


@dataclass(frozen=True)
class Site:
    """Where a parameter meets the samples.

    Attributes:
        leaf: The parameter.
        step: The step that takes it.
        operand: As which operand.
        way: Tensors made from the parameter alone on its way there, the last of which is the operand.
    """

    leaf: str
    step: int
    operand: int
    way: tuple[Place, ...]


def formula(graph: Graph, site: Site) -> Formula | None:
    """A site's formula for this batch; None where there is none."""
    node = graph.nodes[site.step]
    rule = RULES.get(node.name())
    operand = graph.operands[site.step][site.operand]
    if rule is None or operand is None:
        return None
    return rule(Use(node, site.operand, graph.shape(operand), graph.shape((site.step, 0)), turned(graph, site)))


def turned(graph: Graph, site: Site) -> bool:
    """Whether all that happened to a matrix on its way was to be transposed; formulas take that into themselves."""
    return (
        len(site.way) == 1
        and len(graph.shape(site.way[0])) == 2
        and _turns(graph.nodes[site.way[0][0]])
        and graph.nodes[site.step].name() in ("AddmmBackward0", "MmBackward0")
    )


def _turns(node: Node) -> bool:
    """Whether a step exchanges two dimensions. Negative ones are saved as very large numbers, which are odd too."""
    if node.name() == "TransposeBackward0":
        return (node._saved_dim0 - node._saved_dim1) % 2 == 1
    if node.name() == "PermuteBackward0":
        return [place % 2 for place in node._saved_dims] == [1, 0]
    return node.name() == "TBackward0"


def climb(graph: Graph, leaf: str, settled: Callable[[Site], bool]) -> bool:
    """Visit every step that a parameter goes into; where it is not settled there, also those further up.

    A step with one differentiable operand may come between: what it makes of the parameter alone
    (a transposed, a slice, a table's rows) is then the operand further up, and gradients in it are
    pulled back to the parameter.

    Returns:
        Whether every way to the outputs was settled at some step.
    """
    waiting: list[tuple[Place, tuple[Place, ...]]] = [((graph.leaves[leaf], 0), ())]
    every = True
    while waiting:
        place, way = waiting.pop()
        for user in graph.users.get(place, ()):
            if settled(Site(leaf, user.step, user.operand, way)):
                continue
            further = graph.outputs(user.step) if graph.unary(user.step) else []
            every = every and bool(further)
            waiting += [(each, (*way, each)) for each in further]
    return every
