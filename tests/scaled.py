"""The factored scale as one dense vector, from the formulas."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oracles import outputs_of
from slu.curvature.root import OutputSpace
from slu.data import Batch
from slu.likelihoods import Likelihood, resolve


def drawn_rows(
    model: nn.Module,
    inputs: Tensor,
    likelihood: str | Likelihood,
    curvature: str = "ggn",
    targets: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """(b, p): the one gradient per point that the stream draws, from plain autograd."""
    outputs = outputs_of(model, inputs)
    space = OutputSpace(resolve(likelihood), curvature, seed, draws=1)
    roots = space.roots(outputs.detach(), Batch(0, inputs, targets))[:, 0]
    parameters = list(model.parameters())
    rows = []
    for output, root in zip(outputs, roots, strict=True):
        grads = torch.autograd.grad(output @ root, parameters, retain_graph=True, materialize_grads=True)
        rows.append(torch.cat([grad.flatten() for grad in grads]))
    return torch.stack(rows)


def damped_product(model: nn.Module, squares: Tensor, damping: float) -> Tensor:
    """d (p,) from Σ g² (p,), tensor by tensor, as the docstring of `SquareSums.scaling` says."""
    entries, typical, start = [], [], 0
    for value in model.parameters():
        here = squares[start : start + value.numel()]
        start += value.numel()
        sizes = [size for size in value.shape if size != 1]
        if not bool((here > 0).any()):
            entries.append((None, value.numel()))
        elif len(sizes) < 2:
            middle = here[here > 0].median()
            entries.append((here + damping * middle, None))
            typical.append(middle)
        else:
            matrix = here.reshape(sizes[0], -1)
            rows, columns = matrix.sum(1), matrix.sum(0)
            middles = rows[rows > 0].median(), columns[columns > 0].median()
            raised = (rows + damping * middles[0])[:, None] * (columns + damping * middles[1])
            entries.append((raised.flatten() / matrix.sum(), None))
            typical.append(middles[0] * middles[1] / matrix.sum())
    elsewhere = torch.stack(typical).median()
    return torch.cat([(damping * elsewhere).expand(count) if each is None else each for each, count in entries]).rsqrt()
