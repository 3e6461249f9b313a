"""The inputs of a batch as a structure of leaves: tensors, and lists with one example per element."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

Inputs: TypeAlias = Any
"""What the model is called with: a tensor, `Examples`, or a tuple, list or dict of these."""


class Examples(list[Any]):
    """A list with one element per point, such as strings or dicts: a leaf, of which points are taken by slicing."""

    def clone(self) -> Examples:
        """A copy whose dicts and lists can be changed without changing these."""
        return Examples(copy.copy(each) if isinstance(each, Mapping | list) else each for each in self)


Leaf: TypeAlias = Tensor | Examples


def map_leaves(function: Callable[[Leaf], Any], tree: Any) -> Any:
    """The same structure with every leaf replaced; anything else stays."""
    if isinstance(tree, Tensor | Examples):
        return function(tree)
    if isinstance(tree, Mapping):
        return of_kind(tree, {key: map_leaves(function, value) for key, value in tree.items()})
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(function, value) for value in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(map_leaves(function, value) for value in tree)
    return tree


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """The same structure with every tensor replaced; anything else stays."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def leaves(tree: Any) -> list[Leaf]:
    """Every leaf of a structure, in order.

    The structure is not built again, as `map_leaves` does: a packed sequence takes only tensors that belong together.
    """
    if isinstance(tree, Tensor | Examples):
        return [tree]
    parts = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, tuple | list) else ()
    return [leaf for part in parts for leaf in leaves(part)]


def tensors(tree: Any) -> list[Tensor]:
    """Every tensor of a structure, in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def counts_points(leaf: Leaf, points: int) -> bool:
    """Whether a leaf has one row per point; one that has not is shared by all points of the batch."""
    return (isinstance(leaf, Examples) or leaf.dim() > 0) and len(leaf) == points


def lengths(tree: Any) -> list[int]:
    """The number of rows of every leaf that has rows."""
    return [len(leaf) for leaf in leaves(tree) if isinstance(leaf, Examples) or leaf.dim()]


def rows_of(leaf: Leaf, chunk: slice) -> Leaf:
    """Some rows of a leaf, of its own kind."""
    return leaf[chunk] if isinstance(leaf, Tensor) else Examples(leaf[chunk])


def take(inputs: Inputs, chunk: slice, points: int) -> Inputs:
    """Some points of a batch; leaves shared by all points stay whole."""
    return map_leaves(lambda leaf: rows_of(leaf, chunk) if counts_points(leaf, points) else leaf, inputs)


def of_kind(tree: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """The values in a mapping of the same class, whose attributes a `forward` of the user's own may read."""
    if type(tree) is dict:
        return values
    try:
        same: Any = copy.copy(tree)
        for key, value in values.items():
            same[key] = value
    except (TypeError, AttributeError):  # a mapping that cannot be copied or written to
        return values
    return same
