"""The factored scale as one dense vector, from the formulas, plain autograd, and hooks on the layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, unfold

from oracles import outputs_of
from slu.curvature.root import OutputSpace
from slu.data import Batch
from slu.data.fingerprint import CopyCounter
from slu.likelihoods import Likelihood, resolve

SMALL = 4096
"""Numbers from which a tensor is scaled by rows and columns."""


def drawn_roots(
    outputs: Tensor,
    inputs: Tensor,
    likelihood: str | Likelihood,
    curvature: str = "ggn",
    targets: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """(b, t): the one vector over the outputs per point that the stream draws."""
    space = OutputSpace(resolve(likelihood), curvature, seed, draws=1)
    batch = Batch(0, inputs, targets)
    return space.roots(outputs.detach(), batch, space.numbered(batch, outputs, CopyCounter()))[:, 0]


def drawn_rows(model: nn.Module, inputs: Tensor, likelihood: str | Likelihood, *rest, **named) -> Tensor:
    """(b, p): the one gradient per point that the stream draws, from plain autograd."""
    outputs = outputs_of(model, inputs)
    roots = drawn_roots(outputs, inputs, likelihood, *rest, **named)
    parameters = list(model.parameters())
    rows = []
    for output, root in zip(outputs, roots, strict=True):
        grads = torch.autograd.grad(output @ root, parameters, retain_graph=True, materialize_grads=True)
        rows.append(torch.cat([grad.flatten() for grad in grads]))
    return torch.stack(rows)


def _seen(module: nn.Module, inputs: Tensor) -> Tensor:
    """(b, T, i): what each position of a layer's result is made from."""
    if isinstance(module, nn.Embedding):
        return inputs.flatten(1)
    if isinstance(module, nn.Conv2d):
        return unfold(inputs, module.kernel_size, module.dilation, module.padding, module.stride).mT
    return inputs.reshape(len(inputs), -1, inputs.shape[-1])


def layer_factors(
    model: nn.Module, inputs: Tensor, likelihood: str | Likelihood, *rest, **named
) -> dict[str, tuple[Tensor, Tensor]]:
    """By weight, b (b, T, o) and a (b, T, i) over all uses of it: the gradient of a point is Σ_τ b_τ a_τᵀ.

    Of tables b is one at the word of a position that has a gradient.
    """
    name_of = {value: name for name, value in model.named_parameters()}
    uses: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(module: nn.Module, arguments: tuple[Tensor], result: Tensor) -> None:
        uses.append((module, _seen(module, arguments[0].detach()), result))

    with ExitStack() as stack:
        for module in model.modules():
            plain = isinstance(module, nn.Conv2d) and module.groups == 1
            if plain or isinstance(module, nn.Linear | nn.Embedding):
                stack.callback(module.register_forward_hook(note).remove)
        outputs = outputs_of(model, inputs)
    roots = drawn_roots(outputs, inputs, likelihood, *rest, **named)
    slopes = torch.autograd.grad((outputs * roots).sum(), [result for *_, result in uses], materialize_grads=True)
    pairs: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for (module, seen, result), slope in zip(uses, slopes, strict=True):
        of_positions = slope.flatten(2).mT if result.ndim == 4 else slope.reshape(len(slope), -1, slope.shape[-1])
        if isinstance(module, nn.Embedding):
            moved = (of_positions != 0).any(2, keepdim=True)
            if module.padding_idx is not None:
                moved &= (seen != module.padding_idx)[..., None]
            pair = (one_hot(seen, module.num_embeddings) * moved).to(slope), of_positions * moved
        else:
            pair = of_positions, seen
        pairs[name_of[module.weight]].append(pair)
    return {name: (torch.cat([b for b, _ in of], 1), torch.cat([a for _, a in of], 1)) for name, of in pairs.items()}


def kept_as(model: nn.Module, factors: Mapping[str, tuple[Tensor, Tensor]], small: int = SMALL) -> dict[str, str]:
    """By tensor: "entries", kept one by one; "factors", rows and columns of factors; "formed", of formed gradients."""
    kinds = {}
    for name, value in model.named_parameters():
        o, i = value.shape[0], prod(value.shape[1:])
        sides = len([size for size in value.shape if size != 1])
        if sides < 2 or value.numel() < small:
            kinds[name] = "entries"
        else:
            short = name in factors and factors[name][0].shape[1] * (o + i) < o * i
            kinds[name] = "factors" if short else "formed"
    return kinds


def factored(
    model: nn.Module, rows: Tensor, factors: Mapping[str, tuple[Tensor, Tensor]], damping: float, small: int = SMALL
) -> Tensor:
    """d (p,) from gradients (b, p) and their factors, as `SquareSums` says, tensor by tensor."""
    kinds = kept_as(model, factors, small)
    tensors: list[tuple[Tensor, Tensor]] = []  # a typical entry of D, and D
    start = 0
    for name, value in model.named_parameters():
        squares = rows[:, start : start + value.numel()].square().sum(0)
        start += value.numel()
        total = squares.sum()
        if not bool(total > 0):
            tensors.append((total, squares))
        elif kinds[name] == "entries":
            middle = squares[squares > 0].median()
            tensors.append((middle, squares + damping * middle))
        else:
            matrix = squares.view(next(size for size in value.shape if size != 1), -1)
            sides = [matrix.sum(1), matrix.sum(0)]
            if kinds[name] == "factors":
                sides = [side.square().sum((0, 1)) for side in factors[name]]
                sides = [side * (total / side.sum()) for side in sides]
            middles = [side[side > 0].median() for side in sides]
            raised = [side + damping * middle for side, middle in zip(sides, middles, strict=True)]
            tensors.append((middles[0] * middles[1] / total, torch.outer(*raised).flatten() / total))
    elsewhere = torch.stack([typical for typical, _ in tensors if typical > 0]).median()
    rounding = (16 * torch.finfo(rows.dtype).eps) ** 2
    return torch.cat(
        [d if typical > rounding * elsewhere else (damping * elsewhere).expand_as(d) for typical, d in tensors]
    ).rsqrt()


def factored_scale(
    model: nn.Module,
    inputs: Tensor,
    likelihood: str | Likelihood,
    damping: float,
    small: int = SMALL,
    **drawn,
) -> Tensor:
    """d (p,) of the points `inputs`."""
    rows = drawn_rows(model, inputs, likelihood, **drawn)
    return factored(model, rows, layer_factors(model, inputs, likelihood, **drawn), damping, small)
