"""By which way each parameter is differentiated, whether that agrees with plain autograd, and which layers are seen."""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from slu.data.structure import Inputs
from slu.gradients import GeneralGradients, LayerInputs, Network, PerExampleGradients
from slu.gradients.chunks import MAX_NUMBERS
from slu.gradients.layer_inputs import expected_sizes
from slu.gradients.layers import Collector
from slu.gradients.layers.graph import Recording, may_reorder
from slu.gradients.layers.patterns import steps_without_formula
from slu.gradients.network import pull_back
from slu.seeds import stream

GRAPH, VMAP, LOOP, UNUSED = "graph rules", "vmap", "one by one", "unused"

_SHOWN, _LONGEST = 3, 90


@dataclass(frozen=True)
class Way:
    """Parameters of one module that are differentiated in the same way.

    Attributes:
        way: "graph rules"; "vmap" or "one by one", the general fallback; or "unused", where the outputs do not depend
            on them as far as autograd records it.
        module, kind: The module's name and class.
        tensors, parameters: How many.
        why: Of a fallback, as far as it is known.
    """

    way: str
    module: str
    kind: str
    tensors: int
    parameters: int
    why: str = ""


def find_ways(network: Network, inputs: Inputs) -> tuple[list[Way], bool]:
    """The ways by module, and whether rows of the batch may be reordered by the data.

    Cost: two forward passes and up to four backward passes; of the fallback a first block.
    """
    layers = Collector(network, MAX_NUMBERS).forward(inputs)
    outputs = network.outputs(inputs).detach() if layers is None else layers.outputs
    general = network.selection.names if layers is None else layers.general
    del layers
    graph = Recording(network, inputs).graph
    fallback, vmap_fails = VMAP, ""
    if general:
        gradients = GeneralGradients(network)
        next(iter(gradients.blocks(inputs, torch.ones_like(outputs)[:, None], general)))
        if gradients.failure is not None:
            failure = textwrap.shorten(gradients.failure.removeprefix("vmap: "), _LONGEST, placeholder=" …")
            fallback, vmap_fails = LOOP, f"; vmap fails: {failure}"
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    modules = dict(network.model.named_modules())
    for segment in network.selection.segments:
        owner = segment.name.rpartition(".")[0]
        kind = type(modules[owner]).__name__ if owner in modules else ""
        way, why = GRAPH, ""
        if segment.name not in graph.leaves:
            way = UNUSED
        elif segment.name in general:
            steps = steps_without_formula(graph, segment.name)
            why = f"no graph rule for {', '.join(steps)}" if steps else "rows do not belong to single examples"
            way, why = fallback, why + vmap_fails
        groups.setdefault((way, owner, kind, why), []).append(segment.stop - segment.start)
    ways = [Way(way, owner, kind, len(n), sum(n), why) for (way, owner, kind, why), n in groups.items()]
    return ways, may_reorder(graph)


def described_ways(ways: list[Way]) -> str:
    """Shares of the parameters by way, with the kinds of modules, and every fallback with its cause."""
    total, parts = sum(way.parameters for way in ways), []
    for name in (GRAPH, VMAP, LOOP, UNUSED):
        some = [way for way in ways if way.way == name]
        if not some:
            continue
        share = sum(way.parameters for way in some) / total
        if name in (GRAPH, UNUSED):
            kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(way.kind for way in some).most_common())
        else:
            shown = [f"{way.module or 'the model'} ({way.kind}, {way.tensors} tensors): {way.why}" for way in some]
            kinds = "; ".join([*shown[:_SHOWN], *([f"{len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else [])])
        parts.append(f"{name} for {'all' if share == 1 else f'{share:.1%} of the'} parameters: {kinds}")
    return "; ".join(parts)


@torch.enable_grad()
def autograd_error(network: Network, inputs: Inputs) -> float:
    """The relative error of per-example gradients of the first and the last example, against a plain backward pass.

    It is 0 / 0, NaN, where autograd has no gradient at all.

    Cost: the gradients of a batch, two plain backward passes, and four vectors of p numbers.
    """
    leaves = {name: value.requires_grad_() for name, value in network.parameters().items()}
    outputs = network.outputs(inputs, leaves)
    drawn = torch.randn(outputs.shape, generator=stream(0, "doctor"), dtype=torch.float64).to(outputs)
    chosen = sorted({0, len(outputs) - 1})
    plain: dict[int, Tensor] = {}
    for place in chosen:
        cotangent = torch.zeros_like(outputs)
        cotangent[place] = drawn[place]
        plain[place] = network.selection.flatten(pull_back(outputs, leaves, cotangent, retain_graph=True))
    del outputs, leaves
    size = sum(float(each.double().square().sum()) for each in plain.values())
    for rows in PerExampleGradients(network)(inputs, drawn[:, None].to(network.selection.dtype)):
        within = [place for place in chosen if rows.examples.start <= place < rows.examples.stop]
        for start, piece in rows.pieces:
            for place in within:
                row = piece[place - rows.examples.start, 0]
                plain[place][start : start + row.numel()] -= row  # what no piece covers stays, and is an error
    error = sum(float(each.double().square().sum()) for each in plain.values())
    return (error / size) ** 0.5 if size else float("nan")


def recorded_layers(network: Network, inputs: Inputs) -> tuple[list[str], list[str]]:
    """The layers whose inputs are recorded for the distances, and those of the model that are not.

    Cost: four forward passes.
    """
    layers = LayerInputs(network)
    with torch.no_grad():
        layers.finish(inputs, network.outputs(inputs, watch=layers))
    recorded = list(layers.values)
    return recorded, [name for name in expected_sizes(network.model) if name not in recorded]


def why_no_layers(model: nn.Module) -> tuple[str, str]:
    """Why none is recorded, and what to do."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return "scripted modules are called without hooks", "SLU(...) of the module that was scripted"
    if not expected_sizes(model):
        return "no module has a weight matrix of its own", "use nn.Linear and the like in place of functions"
    return "no layer is called with a row of numbers per point", "call the layers as modules, with points first"


def facts_of(ways: list[Way]) -> dict[str, Any]:
    """Parameters by way, for programs."""
    return {name: sum(way.parameters for way in ways if way.way == name) for name in (GRAPH, VMAP, LOOP, UNUSED)}
