"""What the zoo knows of an architecture: the model, its loader, and the call that a user would write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

POINTS = 48
"""Of a loader: enough that a default fit holds points out for calibration, which takes 38."""

BATCH = 14  # the last batch is smaller than the others
IGNORED = -100
CLASSES = 3

Counted = Callable[[Any], Tensor]
"""From a batch of the loader to booleans of the shape of its scores: True where a score is due, False where masked."""


@dataclass(frozen=True)
class Entry:
    """One architecture with random weights, and the data it is called on.

    Attributes:
        build: The model, in training mode as a user may leave it.
        loader: The loader of its data, which is the same in every pass up to its order.
        counted: Shape of the scores of a batch, and which of them are due.
        likelihood: What SLU is told of the outputs.
        settings: Of SLU beside the model and the likelihood; most need none.
        shuffled: Whether the loader changes the order of its points between passes.
        exact: Whether the model can be computed in float64.
        slow: Whether it takes seconds.
    """

    build: Callable[[], nn.Module]
    loader: Callable[[nn.Module], Iterable[Any]]
    counted: Counted
    likelihood: str = "classification"
    settings: Mapping[str, Any] = field(default_factory=dict)
    shuffled: bool = False
    exact: bool = True
    slow: bool = False


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> Callable[[], nn.Module]:
    """The same factory with weights that do not depend on what was drawn before."""

    def built() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return build()

    return built


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def per_input(batch: Any) -> Tensor:
    """One score per input, whatever the batch is made of."""
    return torch.ones(len(leaf(batch)), dtype=torch.bool)


def leaf(tree: Any) -> Tensor:
    """The first tensor of a batch; it has one row per input."""
    while not isinstance(tree, Tensor):
        tree = next(iter(tree.values())) if isinstance(tree, Mapping) else tree[0]
    return tree


def convert(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The same batch with every tensor replaced, independently of the library's own function for it."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {key: convert(function, value) for key, value in tree.items()}
    return tree if tree is None else type(tree)(convert(function, value) for value in tree)


def some(batch: Any, rows: slice | list[int]) -> Any:
    """Some inputs of a batch, with their targets."""
    return convert(lambda tensor: tensor[rows], batch)


def double(tree: Any) -> Any:
    """A batch in float64; integers and booleans stay."""
    return convert(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, tree)
