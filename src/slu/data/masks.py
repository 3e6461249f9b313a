"""Which positions of padded inputs count: the masks that models are called with, by the names they usually have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

IGNORE_INDEX = -100
"""The target of a position that does not count, as torch's cross-entropy and transformers have it."""

DECODER = ("decoder_attention_mask", "decoder_input_ids")
"""Of models whose outputs are those of a decoder."""

COUNTS = ("attention_mask", "decoder_attention_mask")
"""Names of masks that are nonzero where a position counts."""

IGNORED = ("src_key_padding_mask", "key_padding_mask", "padding_mask")
"""Names of masks that are true where a position is padding."""

LENGTHS = ("lengths", "length", "seq_lengths", "input_lengths")
"""Names of vectors with the number of positions that count, the first ones of every input."""


def position_mask(named: Any) -> Tensor | None:
    """(b, T), true where a position counts; None where the inputs have no mask of a usual name and shape.

    Args:
        named: Inputs by the names of the model's arguments, a dict or a named tuple; anything else has no mask.

    >>> position_mask({"input_ids": torch.ones(2, 3), "lengths": torch.tensor([1, 3])})
    tensor([[ True, False, False],
            [ True,  True,  True]])
    """
    named = named._asdict() if _has_names(named) else named
    if isinstance(named, Mapping) and any(name in named for name in DECODER):
        named = {name: named[name] for name in DECODER if name in named}  # the other mask is that of the encoder
    if not isinstance(named, Mapping):
        return None
    for name, value in named.items():
        if not isinstance(value, Tensor):
            continue
        # One score per pair of positions, or per head, is another thing under the same name.
        if value.dim() == 2 and name in COUNTS:
            # Of ones and zeros; or of numbers that are added, minus infinity at padding.
            added = value.is_floating_point() and torch.where((value > 0).any(1, keepdim=True), value > 0, value == 0)
            return added if isinstance(added, Tensor) else value > 0
        if value.dim() == 2 and name in IGNORED:  # true at padding, or minus infinity, which is added
            return value == 0
        if name in LENGTHS and value.dim() == 1 and not value.is_floating_point():
            others = (each for each in named.values() if isinstance(each, Tensor) and each.dim() > 1)
            longest = next((each.shape[1] for each in others if len(each) == len(value)), None)
            if longest is not None:
                return torch.arange(longest, device=value.device) < value[:, None]
    return None


def without_padding(tree: Any) -> Any:
    """The same inputs, or (inputs, targets), with zeros in place of whatever stands at positions that do not count."""
    inputs = tree[0] if isinstance(tree, tuple) and len(tree) == 2 and not _has_names(tree) else tree
    mask = position_mask(inputs)
    return tree if mask is None else _masked(tree, mask)


def _has_names(tree: Any) -> bool:
    return isinstance(tree, tuple) and hasattr(tree, "_fields")


def _masked(tree: Any, mask: Tensor) -> Any:
    if isinstance(tree, Mapping):
        return {key: each if key in LENGTHS else _masked(each, mask) for key, each in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_masked(each, mask) for each in tree)
    if not isinstance(tree, Tensor) or tree.shape[:2] != mask.shape:
        return tree
    kept = mask.to(tree.device).view(*mask.shape, *[1] * (tree.dim() - 2))
    return torch.where(kept, tree, torch.zeros((), dtype=tree.dtype, device=tree.device))
