"""Which positions of padded inputs count: the masks that models are called with, by the names they usually have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slu.data.structure import TARGETS, tensors

IGNORE_INDEX = -100
"""The target of a position that does not count, as torch's cross-entropy and transformers have it."""

DECODER = ("decoder_", "tgt")
"""How the arguments of a decoder are called, at the beginning; outputs of a model that has some are those of it."""

COUNTS = ("attention_mask", "decoder_attention_mask")
"""Names of masks that are nonzero where a position counts."""

IGNORED = ("src_key_padding_mask", "tgt_key_padding_mask", "key_padding_mask", "padding_mask")
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
    decoder, masks = _masks(named)
    mask = masks[bool(decoder)]
    return None if mask is None else mask.counts


def without_padding(tree: Any) -> Any:
    """The same inputs, or (inputs, targets), as their keys have them: without what does not count.

    Of every input the first position that counts comes first, and zeros stand wherever one does not: how much padding
    there is on the left and on the right makes no difference. A gap between positions that count stays, for how far
    these are apart may matter to the network. In the mask itself no zeros stand where a position counts. An encoder and
    a decoder have each their own mask; targets that have positions are those of the outputs.
    """
    pair = isinstance(tree, tuple) and len(tree) == 2 and not _has_names(tree)
    inputs = tree[0] if pair else tree
    decoder, masks = _masks(inputs)
    if not any(masks):
        return tree
    kept = {name: _counted(value, masks[name in decoder]) for name, value in _named(inputs).items()}
    return (kept, _counted(tree[1], masks[bool(decoder)])) if pair else kept


def padded_before(inputs: Any) -> int:
    """Whether padding stands before what counts of any input: 1 of the inputs, 2 of those of a decoder, or the sum.

    Keys do not tell (`without_padding`), but a network that numbers positions from the first column does. Of an input
    of which nothing counts, padding stands on no side.

    >>> padded_before({"attention_mask": torch.tensor([[1, 1], [0, 1]])})
    1
    """
    return sum(place * _begins_later(mask) for place, mask in zip((1, 2), _masks(inputs)[1], strict=True))


def _begins_later(mask: _Mask | None) -> bool:
    return mask is not None and bool((mask.counts.any(1, keepdim=True) & ~mask.counts[:, :1]).any())


def unmasked_lengths(pair: tuple[Any, Any]) -> list[int]:
    """How long the rows are of (inputs, targets) of which no mask says where they end.

    >>> ids = torch.ones(2, 3)
    >>> unmasked_lengths(({"input_ids": ids, "attention_mask": ids, "image": torch.ones(2, 8, 8)}, None))
    [8]
    """
    decoder, masks = _masks(pair[0])
    named = _named(pair[0]) or {None: pair[0]}
    parts = [(value, masks[name in decoder]) for name, value in named.items()] + [(pair[1], masks[bool(decoder)])]
    return [
        tensor.shape[1]
        for value, mask in parts
        for tensor in tensors(value)
        if tensor.dim() > 1 and (mask is None or tensor.shape[:2] != mask.counts.shape)
    ]


class _Mask(NamedTuple):
    source: Tensor  # that says it
    counts: Tensor  # (b, T), true where a position counts


def _has_names(tree: Any) -> bool:
    return isinstance(tree, tuple) and hasattr(tree, "_fields")


def _named(tree: Any) -> Mapping[Any, Any]:
    tree = tree._asdict() if _has_names(tree) else tree
    return tree if isinstance(tree, Mapping) else {}


def _masks(inputs: Any) -> tuple[set[Any], list[_Mask | None]]:
    """The names of what a decoder is given; the masks of all else, and of that."""
    named = _named(inputs)
    decoder = {name for name in named if str(name).startswith(DECODER)}
    if decoder:  # whose outputs targets belong to
        decoder.update(name for name in TARGETS if name in named)
    return decoder, [
        _mask({name: named[name] for name in named if (name in decoder) == side}) for side in (False, True)
    ]


def _mask(named: Mapping[Any, Any]) -> _Mask | None:
    for name, value in named.items():
        if not isinstance(value, Tensor):
            continue
        # One score per pair of positions, or per head, is another thing under the same name.
        if value.dim() == 2 and name in COUNTS:
            # Of ones and zeros; or of numbers that are added, minus infinity at padding.
            added = value.is_floating_point() and torch.where((value > 0).any(1, keepdim=True), value > 0, value == 0)
            return _Mask(value, added if isinstance(added, Tensor) else value > 0)
        if value.dim() == 2 and name in IGNORED:  # true at padding, or minus infinity, which is added
            return _Mask(value, value == 0)
        if name in LENGTHS and value.dim() == 1 and not value.is_floating_point():
            others = (each for each in named.values() if isinstance(each, Tensor) and each.dim() > 1)
            longest = next((each.shape[1] for each in others if len(each) == len(value)), None)
            if longest is not None:
                return _Mask(value, torch.arange(longest, device=value.device) < value[:, None])
    return None


def _counted(tree: Any, mask: _Mask | None) -> Any:
    if mask is None:
        return tree
    if isinstance(tree, Mapping):
        return {key: _counted(each, mask) for key, each in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_counted(each, mask) for each in tree)
    if not isinstance(tree, Tensor) or tree.shape[:2] != mask.counts.shape:
        return tree
    if tree is mask.source:
        tree = tree.masked_fill(tree == 0, 1)  # zeros at the end are not seen in a key
    counts = mask.counts.to(tree.device)
    padding = (counts.cumsum(1) == 0).sum(1, keepdim=True)  # on the left
    if bool(padding.any()):
        points, positions = (torch.arange(size, device=tree.device) for size in counts.shape)
        places = points[:, None], (padding + positions) % len(positions)
        tree, counts = tree[places], counts[places]
    kept = counts.view(*counts.shape, *[1] * (tree.dim() - 2))
    return torch.where(kept, tree, torch.zeros((), dtype=tree.dtype, device=tree.device))
