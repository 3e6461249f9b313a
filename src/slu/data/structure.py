"""A batch as a structure of leaves: tensors, and lists with one example per element.

What comes is converted to that: arrays become tensors. What has no rows of points is refused with its cause.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from slu.errors import DataError

Inputs: TypeAlias = Any
"""What the model is called with: a tensor, `Examples`, or a tuple, list, dict or dataclass of these."""

TARGETS = ("labels", "label", "targets", "target", "y")
"""Names of targets inside of a dict, the first that is there."""

_PARTS = tuple | list

_NUMBERS = {
    "M": "its dates as numbers, (array - numpy.datetime64('2000-01-01')) / numpy.timedelta64(1, 'D')",
    "m": "its durations as numbers, array / numpy.timedelta64(1, 'D')",
    "V": "its fields as columns, numpy.lib.recfunctions.structured_to_unstructured(array)",
    "c": "array.astype('complex128')",
}
"""What to pass in place of an array that torch has no type for, by its kind."""


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
        return _of_kind(tree, {key: map_leaves(function, value) for key, value in tree.items()})
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(function, value) for value in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(map_leaves(function, value) for value in tree)
    return _with_fields(tree, {name: map_leaves(function, value) for name, value in fields_of(tree).items()})


def fields_of(tree: Any) -> dict[str, Any]:
    """The fields of a batch that is an object of a dataclass; none of anything else."""
    if not dataclasses.is_dataclass(tree) or isinstance(tree, type | Mapping):
        return {}
    return {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}


def _with_fields(tree: Any, values: dict[str, Any]) -> Any:
    same = copy.copy(tree) if values else tree
    for name, value in values.items():
        object.__setattr__(same, name, value)  # a frozen one as well; its __init__ may take other arguments
    return same


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """The same structure with every tensor replaced; anything else stays."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def leaves(tree: Any) -> list[Leaf]:
    """Every leaf of a structure, in order.

    The structure is not built again, as `map_leaves` does: a packed sequence takes only tensors that belong together.
    """
    if isinstance(tree, Tensor | Examples):
        return [tree]
    tree = tree if isinstance(tree, Mapping | tuple | list) else fields_of(tree)
    parts = tree.values() if isinstance(tree, Mapping) else tree
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


def _of_kind(tree: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
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


def converted(tree: Any, dtype: torch.dtype | None) -> Any:
    """The same structure with arrays as tensors and per-example lists as `Examples`.

    Args:
        tree: A batch as it came.
        dtype: Of arrays of floating-point numbers, for which numpy takes float64; None for as they are.

    Raises:
        DataError: Something has no rows of points: packed, nested or sparse tensors, graphs; or no numbers that torch
            has: arrays with fields or dates.
    """
    if isinstance(tree, np.ndarray):
        return _from_array(tree, dtype)
    if isinstance(tree, Examples):
        return tree
    _refuse(tree)
    if isinstance(tree, Mapping):
        values = {key: _value(value, dtype) for key, value in tree.items()}
        return tree if all(values[key] is tree[key] for key in values) else _of_kind(tree, values)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(converted(each, dtype) for each in tree))
    if isinstance(tree, _PARTS) and are_examples(tree):
        _refuse_inside(tree)
        return Examples(tree)
    if isinstance(tree, _PARTS):
        return type(tree)(converted(each, dtype) for each in tree)
    return _with_fields(tree, {name: _value(value, dtype) for name, value in fields_of(tree).items()})


def are_examples(values: Sequence[Any]) -> bool:
    """Whether each element of a list is an example: a string, a dict or tuple of unbatched values, tokens.

    A tuple of strings is such a list as well, as a DataLoader gives it; other tuples are inputs and targets.
    """
    strings = [isinstance(each, str | bytes) for each in values]
    if not values or isinstance(values, tuple):
        return len(values) > 0 and all(strings)
    # [texts, labels] are two lists of one batch, not two examples.
    words = {isinstance(each[0], str | bytes) for each in values if isinstance(each, _PARTS) and each}
    return len(words) < 2 and all(_is_example(each) for each in values)


def as_numbers(targets: Any) -> Any:
    """Targets in a list of numbers as a tensor; None for a list of anything else, such as names of classes."""
    if isinstance(targets, _PARTS) and targets and all(_is_scalar(each) for each in targets):
        return torch.tensor([each.item() if isinstance(each, Tensor) else each for each in targets])
    return None if isinstance(targets, Examples) else targets


def refuse_bags(inputs: Sequence[Tensor], where: str) -> None:
    """Refuse the values and offsets of an EmbeddingBag: the first have a row per word, not per point."""
    flat = [each for each in inputs if each.dim() == 1 and not (each.is_floating_point() or each.dtype == torch.bool)]
    for offsets in flat:
        longer = [each for each in flat if len(each) > len(offsets)]
        if longer and len(offsets) and int(offsets[0]) == 0 and bool((offsets.diff() >= 0).all()):
            raise DataError(
                f"{where} has {len(longer[0])} indices and {len(offsets)} offsets of an EmbeddingBag; the indices have "
                "no row per point. Pass a padded table of indices, (points, most words of a point), without offsets, "
                "and give the EmbeddingBag a padding_idx"
            )


def _value(value: Any, dtype: torch.dtype | None) -> Any:
    """A value of a dict, in which a list of numbers has one per point as well."""
    if type(value) is list and value and all(_is_scalar(each) for each in value):
        return Examples(value)
    return converted(value, dtype)


def is_masked(array: np.ndarray) -> bool:
    """Whether any place of an array, or of one of its fields, is masked."""
    return any(np.asarray(np.ma.getmask(array)).tobytes())


def _from_array(array: np.ndarray, dtype: torch.dtype | None) -> Any:
    if array.dtype.kind in "USO":
        return Examples(array.tolist())
    if is_masked(array):
        raise DataError(
            "a masked array came in a batch, and what stands at its masked places would count as numbers. Fill them, "
            "array.filled(0), and give the mask beside it if the model takes one"
        )
    # A copy: an array may be read-only, run backwards or have the byte order of a file of another machine.
    native = np.array(array, dtype=array.dtype.newbyteorder("="))
    try:
        tensor = torch.from_numpy(native)
    except TypeError as reason:
        cure = _NUMBERS.get(array.dtype.kind, "array.astype('float64')")
        raise DataError(
            f"an array of {array.dtype} came in a batch, a type that torch does not have. Pass {cure}"
        ) from reason
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def _refuse_inside(examples: Any) -> None:
    """Refuse examples with tensors of which it cannot be told whether two are equal."""
    for each in examples.values() if isinstance(examples, Mapping) else examples:
        if isinstance(each, Tensor):
            _refuse(each)
        elif isinstance(each, Mapping | _PARTS):
            _refuse_inside(each)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Number) or (isinstance(value, Tensor | np.ndarray) and value.ndim == 0)


def _is_example(value: Any) -> bool:
    if isinstance(value, str | bytes):
        return True
    if isinstance(value, Mapping):
        targets = [value[name] for name in TARGETS if name in value]
        if any(_is_scalar(each) for each in targets) or any(_has_rows(each) for each in targets):
            return any(_is_scalar(each) for each in targets)  # targets with rows are those of a batch
        return any(isinstance(each, str | bytes) for each in value.values()) or not _has_rows(value)
    if isinstance(value, _PARTS) and not hasattr(value, "_fields"):  # tokens; (x, 3), an example and its label
        flat = all(_is_scalar(each) or isinstance(each, str | bytes) for each in value)
        labelled = any(isinstance(each, Number) for each in value[1:]) and not _has_rows(value[1:])
        return bool(value) and (flat or labelled)
    return False


def _has_rows(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_has_rows(each) for each in value.values())
    if isinstance(value, _PARTS):
        return any(_has_rows(each) for each in value)
    return isinstance(value, Tensor | np.ndarray) and value.ndim > 0


def _refuse(tree: Any) -> None:
    if isinstance(tree, Tensor) and (tree.is_nested or tree.layout != torch.strided):
        kind, cure = ("nested", "torch.nested.to_padded_tensor(tensor, 0)")
        if not tree.is_nested:
            kind, cure = "sparse", "tensor.to_dense()"
        raise DataError(
            f"a {kind} tensor came in a batch, and points must be rows of dense tensors. Pass {cure}, with lengths "
            "or a mask beside it where these matter; forward= may turn it back"
        )
    if isinstance(tree, PackedSequence):
        raise DataError(
            "a PackedSequence came in a batch; it has no rows of points. Pass the padded sequences and their lengths, "
            "((x, lengths), targets), and pack them inside of the model's forward or of forward="
        )
    graph = "edge_index" in tree if isinstance(tree, Mapping) else hasattr(tree, "edge_index")
    if graph:
        raise DataError(
            f"a graph came in a batch ({type(tree).__name__} with edge_index), and its nodes are no separate points. "
            "Pass indices of nodes as inputs and keep the graph in the model, or in forward=: "
            "forward=lambda model, nodes: model(graph.x, graph.edge_index)[nodes]"
        )
