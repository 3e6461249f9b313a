"""The format of batches that were read, as plain data: how a tuple or list is read that could be read in two ways.

The kind of a tensor is its type of numbers ("f", "i", "b" or "c") and the sizes of its dimensions after the first, None
where these varied; that of a tuple or list is the kinds of its parts, that of a dict or dataclass those of its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slu.data.structure import Examples, fields_of
from slu.errors import DamagedFileError


@dataclass
class Format:
    """The kinds of inputs and targets seen so far; None where none were.

    Attributes:
        inputs, targets: As `kind_of` gives them.
    """

    inputs: Any = None
    targets: Any = None

    def learn(self, inputs: Any, targets: Any) -> None:
        """Remember the kinds of a batch, where they are new or differ in sizes alone."""
        self.inputs = _joined(self.inputs, kind_of(inputs))
        self.targets = _joined(self.targets, kind_of(targets))

    def joined(self, other: Format) -> Format:
        """Of both."""
        return Format(_joined(self.inputs, other.inputs), _joined(self.targets, other.targets))

    def to_plain(self) -> dict[str, Any]:
        """For a file."""
        return {"inputs": self.inputs, "targets": self.targets}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any] | None) -> Format:
        """From a file; nothing is known where it has none.

        Raises:
            DamagedFileError: It is no format.
        """
        if plain is None:
            return cls()
        if not isinstance(plain, Mapping) or not all(_is_kind(plain.get(name)) for name in ("inputs", "targets")):
            raise DamagedFileError("the format of the batches that were read is none. Fit and save anew")
        return cls(plain.get("inputs"), plain.get("targets"))


def kind_of(tree: Any) -> Any:
    """The kind of a structure; None where it is not known, as of None."""
    if isinstance(tree, Tensor):
        return {"numbers": _numbers(tree.dtype), "shape": list(tree.shape[1:]) if tree.dim() else None}
    if isinstance(tree, Examples):
        return {"examples": True}
    if isinstance(tree, Mapping):
        return {"keys": {str(key): kind_of(value) for key, value in tree.items()}}
    if isinstance(tree, tuple | list):
        return {"parts": [kind_of(each) for each in tree]}
    return kind_of(fields) if (fields := fields_of(tree)) else None


def _is_kind(kind: Any) -> bool:
    """Whether `kind_of` could have given it."""
    if kind is None:
        return True
    if not isinstance(kind, Mapping):
        return False
    if kind.keys() == {"parts"} and isinstance(kind["parts"], list):
        return all(map(_is_kind, kind["parts"]))
    if kind.keys() == {"keys"} and isinstance(kind["keys"], Mapping):
        return all(map(_is_kind, kind["keys"].values()))
    if kind.keys() == {"numbers", "shape"} and kind["numbers"] in ("f", "i", "b", "c"):
        shape = kind["shape"]
        sizes = shape if isinstance(shape, list) else []
        return (shape is None or shape is sizes) and all(each is None or type(each) is int for each in sizes)
    return kind == {"examples": True}


def same_kind(kind: Any, other: Any, *, sizes: bool = True) -> bool:
    """Whether two kinds agree but for sizes that are known to vary; without `sizes`, but for any sizes."""
    if not isinstance(kind, Mapping) or not isinstance(other, Mapping):
        return kind is None and other is None
    if kind.keys() != other.keys():
        return False
    if "parts" in kind:
        pairs = zip(kind["parts"], other["parts"], strict=False)
        return len(kind["parts"]) == len(other["parts"]) and all(same_kind(*pair, sizes=sizes) for pair in pairs)
    if "keys" in kind:
        keys, others = kind["keys"], other["keys"]
        return keys.keys() == others.keys() and all(same_kind(keys[key], others[key], sizes=sizes) for key in keys)
    if "numbers" in kind and kind["numbers"] == other["numbers"]:
        return _alike(kind, other) and all(
            not sizes or None in pair or pair[0] == pair[1]
            for pair in zip(kind["shape"] or (), other["shape"] or (), strict=True)
        )
    return "examples" in kind


def _joined(kind: Any, new: Any) -> Any:
    """A kind that also covers a new one, where these differ in sizes alone; else as it was."""
    if kind is None or new is None:
        return new if kind is None else kind
    if kind.keys() != new.keys():
        return kind
    if "parts" in kind and len(kind["parts"]) == len(new["parts"]):
        return {"parts": [_joined(*pair) for pair in zip(kind["parts"], new["parts"], strict=True)]}
    if "keys" in kind and kind["keys"].keys() == new["keys"].keys():
        return {"keys": {key: _joined(value, new["keys"][key]) for key, value in kind["keys"].items()}}
    if "numbers" in kind and kind["numbers"] == new["numbers"] and _alike(kind, new) and kind["shape"] is not None:
        sizes = zip(kind["shape"], new["shape"], strict=True)
        return {**kind, "shape": [one if one == other else None for one, other in sizes]}
    return kind


def _alike(kind: Any, other: Any) -> bool:
    """Whether the kinds of two tensors have as many dimensions."""
    return (kind["shape"] is None) == (other["shape"] is None) and len(kind["shape"] or ()) == len(other["shape"] or ())


def _numbers(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "b"
    return "c" if dtype.is_complex else "f" if dtype.is_floating_point else "i"
