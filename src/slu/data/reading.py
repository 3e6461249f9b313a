"""How one item of a loader is read: which of its parts the model is called with, and which are targets."""

from __future__ import annotations

import logging
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slu.data.format import Format, kind_of, same_kind
from slu.data.masks import IGNORE_INDEX, LENGTHS
from slu.data.signature import Signature
from slu.data.structure import (
    TARGETS,
    Examples,
    Inputs,
    are_examples,
    as_numbers,
    converted,
    fields_of,
    leaves,
    lengths,
    refuse_bags,
    tensors,
)
from slu.errors import DataError

log = logging.getLogger(__name__)

_PARTS = tuple | list
_DECODED = ("decoder_input_ids", "decoder_inputs_embeds")


class BatchReader:
    """Reads the items of a loader as inputs and targets, and remembers their format.

    A part of a tuple that could be an input or the targets is never guessed: what was read before decides, then the
    signature of the model's `forward`; else it is refused.

    Args:
        signature: Of the model's `forward`. None where a `forward` of the user's own calls the model: dicts and lists
            of examples then go to it as they came.
        dtype: What arrays of floating-point numbers are converted to, the type of the model's parameters; None for as
            they are.
        bags: Whether the model has an EmbeddingBag, whose values and offsets are no rows of points.
        causal: Whether the model predicts the next token: the labels in a dict are then the tokens themselves, and that
            of a position is the one after it, as transformers' loss has it.
        decoder: How the inputs of the model's decoder are made of the labels in a dict that has none; None for a model
            that does not make them.

    Attributes:
        format: Of the batches read so far; a file keeps it.
        index: Of the batch that is being read or used; None outside of a pass over data.
        purpose: What the batches are read for, in words.
        apart: What of the last tuple or list was not read as inputs but as targets, in words; empty where nothing was.
    """

    def __init__(
        self,
        signature: Signature | None = None,
        dtype: torch.dtype | None = None,
        *,
        bags: bool = False,
        causal: bool = False,
        decoder: Callable[..., Any] | None = None,
    ) -> None:
        self.format = Format()
        self.index: int | None = None
        self.purpose, self.apart = "reading", ""
        self._signature = signature
        self._dtype = dtype
        self._bags = bags
        self._causal = causal
        self._decoder = decoder
        self._logged: set[str] = set()

    @property
    def own_forward(self) -> bool:
        """Whether a function of the user's own calls the model."""
        return self._signature is None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the arguments of the model's `forward` by position; empty where a function of the user's own calls it."""
        return () if self._signature is None else self._signature.names

    def anew(self) -> BatchReader:
        """A reader for the same model that has read nothing."""
        return BatchReader(self._signature, self._dtype, bags=self._bags, causal=self._causal, decoder=self._decoder)

    def read(self, item: Any, index: int, *, learn: bool = True) -> tuple[Inputs, Any]:
        """The inputs and targets of an item of a loader; None for no targets.

        Args:
            item: The item.
            index: Its number.
            learn: Whether its format is remembered, as in a fit. A query is read by the format of the fit.

        Raises:
            DataError: It can be read in two ways, lacks what the model needs, is nothing that has points, or has more
                or fewer targets than points.
        """
        item, where = converted(item, self._dtype), f"batch {index}"
        if isinstance(item, Mapping):
            inputs, targets = self._from_mapping(item, where)
        elif isinstance(item, _PARTS) and not isinstance(item, Examples):
            inputs, targets = self._from_parts(item, where, learn=learn)
            if isinstance(inputs, Mapping):
                inputs, inside = self._from_mapping(inputs, where)
                targets = inside if targets is None else targets
        else:
            inputs, targets = item, _targets_inside(item)
        targets = as_numbers(targets)
        self.apart = "" if targets is None or not isinstance(item, _PARTS) else _shown([targets])
        self._check(inputs, where)
        _check_rows(inputs, targets, where)
        if learn:
            self.format.learn(inputs, targets)
        return self._with_names(inputs), targets

    def _with_names(self, inputs: Inputs) -> Inputs:
        """Inputs that are given by position, with the names of the arguments they are for: masks are known by these."""
        if type(inputs) not in (tuple, list) or len(inputs) > len(self.names):
            return inputs
        return _arguments(self.names[: len(inputs)])(*inputs)

    def is_one_batch(self, data: Any) -> bool:
        """Whether data is itself a batch rather than a loader of batches.

        A tensor, an array, a dict, a tuple and an object of a dataclass are batches. A list is one of strings, of
        dicts of one example each, or as a DataLoader gives it, [inputs, targets]; else it is a list of batches.

        Raises:
            DataError: A list can be read in both ways.
        """
        if isinstance(data, Tensor | np.ndarray | Mapping | tuple | Examples):
            return True
        if fields_of(data) and not (hasattr(data, "__iter__") or hasattr(data, "checked_batches")):  # or it is a loader
            return True
        if type(data) is not list or not data:
            return False
        if are_examples(data):  # but a list of lists of strings is a list of batches
            return not all(isinstance(each, _PARTS) and are_examples(list(each)) for each in data)
        structures = [isinstance(each, Mapping | _PARTS) for each in data]
        if len(data) == 1 or all(structures) or len({len(each) for each in data if _has_rows(each)}) > 1:
            return False
        parts = [converted(each, self._dtype) for each in data]
        if structures[0]:  # [[a, b], targets], [{…}, targets]; a tuple is a batch of its own
            whole = isinstance(parts[0], Examples) or not isinstance(parts[0], tuple)
            return whole and all(each is None or isinstance(each, Tensor | Examples) for each in parts[1:])
        if len(parts) == 2 and parts[1] is None:
            return True
        rows = [each for each in parts if isinstance(each, Tensor) and each.dim()]
        if len(rows) < len(parts):
            return False
        if self._signature is not None and self._signature.needed > 1:
            return len(rows) >= self._signature.needed  # one tensor alone is no batch for this model
        return self._is_pair(rows)

    def _is_pair(self, parts: list[Tensor]) -> bool:
        """Whether tensors of equal length are the inputs and targets of one batch, and not a batch each."""
        kinds, known = [kind_of(each) for each in parts], self.format
        takes = () if self._signature is None else self._signature.inputs
        several = len(takes) > 1 and len(parts) <= len(takes) + 1  # these inputs, and targets
        several = several or "*args" in takes
        equal = all(kind == kinds[0] for kind in kinds)
        if known.inputs is not None:
            count = len(known.inputs["parts"]) if "parts" in known.inputs else 1
            inputs = {"parts": kinds[:count]} if "parts" in known.inputs else kinds[0]
            # Sizes may vary, as of padded texts; of tensors that differ among each other they tell which is which.
            many = all(same_kind(known.inputs, kind, sizes=not equal) for kind in kinds)
            one = same_kind(known.inputs, inputs, sizes=count == 1) and (
                len(kinds) == count or (not many and _looks_like_targets(parts[count], len(parts[0])))
                if known.targets is None or len(kinds) == count
                else same_kind(known.targets, kinds[count])
            )
            unlabelled = known.targets is None and len(parts) == 2 and _looks_like_targets(parts[1], len(parts[0]))
            if many and (one or several or unlabelled):
                _refuse_list(parts)
            if one or many:
                return one
        if equal:
            if several or len(parts) == 2:
                _refuse_list(parts)
            return False
        if all(each.dtype == parts[0].dtype and each.dim() == parts[0].dim() for each in parts):
            if _looks_like_targets(parts[-1], len(parts[0])):
                return True
            if len(parts) == 2:
                _refuse_list(parts)
            return False
        return True

    def _from_mapping(self, item: Mapping[str, Any], where: str) -> tuple[Inputs, Any]:
        signature = self._signature
        required = () if signature is None else signature.required
        inside = [name for name in TARGETS if name in item and name not in required]
        targets = item[inside[0]] if inside else None
        if self._causal and isinstance(targets, Tensor) and targets.dim() == 2:
            targets = functional.pad(targets[:, 1:], (0, 1), value=IGNORE_INDEX)
        if signature is None:
            return item, targets
        keywords = signature.keywords
        kept = {
            key: value for key, value in item.items() if key not in inside and (keywords is None or key in keywords)
        }
        if self._decoder is not None and isinstance(targets, Tensor) and not any(map(item.__contains__, _DECODED)):
            kept["decoder_input_ids"] = self._decoder(labels=targets)
            if self._first_time("decoder"):
                log.info("the inputs of the decoder are made of the labels, as the model makes them for its loss")
        missing = [name for name in required if name not in kept]
        if not kept or missing:
            lacks = f"{', '.join(missing)} is missing" if missing else "none of these is left for the model"
            raise DataError(
                f"{where} is a dict with the keys {', '.join(map(repr, item))}, and the model has {signature}: "
                f"{lacks}. Name the keys as the arguments, or say how the model is called: "
                f"forward=lambda model, batch: model(batch[{next(iter(item), 'x')!r}]), or model(batch) if it takes "
                "the dict itself"
            )
        dropped = [key for key in item if key not in kept and key not in inside]
        if dropped and self._first_time("dropped"):
            log.info("%s does not take the keys %s of a batch; they are left out", signature, ", ".join(dropped))
        return kept, targets

    def _from_parts(self, parts: Sequence[Any], where: str, *, learn: bool) -> tuple[Inputs, Any]:
        if not parts:
            raise DataError(f"{where} is a {type(parts).__name__} of 0; expected inputs, or (inputs, targets)")
        if self._signature is None and len(parts) > 1 and _are_texts(parts[1]):
            # Pairs of texts, of which none are targets: a forward of the user's own is given all, as of a dict.
            targets, points = as_numbers(parts[-1]), next(iter(lengths(parts[1])))
            whole = [Examples(each) if type(each) is list else each for each in parts]
            whole = whole if type(parts) is list else getattr(parts, "_make", tuple)(whole)
            return whole, targets if _looks_like_targets(targets, points) else None
        if isinstance(parts[0], Mapping | _PARTS):  # Examples among them
            return parts[0], parts[1] if len(parts) > 1 else None
        known, signature = self.format.inputs, self._signature
        if known is not None and "parts" in known and len(parts) >= len(known["parts"]):
            count = len(known["parts"])
            kinds = [kind_of(each) for each in parts[:count]]
            resized = same_kind(known, {"parts": kinds}, sizes=False) and not same_kind(self.format.targets, kinds[-1])
            if resized or same_kind(known, {"parts": kinds}):
                self._check_targets(parts, count, where, learn=learn)
                return tuple(parts[:count]), parts[count] if len(parts) > count else None
        count = 1 if signature is None else max(1, signature.needed)
        if len(parts) < count:
            raise DataError(
                f"{where} is a {type(parts).__name__} of {_shown(parts)}, and the model needs {count} inputs: "
                f"{signature}. Pass ((first, second), targets) or a dict by names; or say how it is called, forward="
            )
        self._check_targets(parts, count, where, learn=learn)
        return parts[0] if count == 1 else tuple(parts[:count]), parts[count] if len(parts) > count else None

    def _check_targets(self, parts: Sequence[Any], count: int, where: str, *, learn: bool) -> None:
        """Refuse the part after the inputs as targets where it may be one more input."""
        signature, known = self._signature, self.format
        targets = as_numbers(parts[count]) if len(parts) > count else None
        if targets is None or (signature is not None and not signature.others(count)):
            return
        others = ("mask",) if signature is None else signature.others(count)
        if signature is None and known.inputs is None and len(parts) == count + 1:
            return  # the first batch for a forward of the user's own, which takes what comes first
        # In a fit one number per point is targets; in a query, what the fit had as such.
        fitting = learn or known.inputs is None or (signature is None and known.targets is None)
        points = next(iter(lengths(parts[0])), None)
        if not (signature is not None and _fits_argument(targets, parts[0], others)) and (
            same_kind(known.targets, kind_of(targets)) or (fitting and _looks_like_targets(targets, points))
        ):
            return
        names = () if signature is None else signature.names
        first = list(names[:count]) if len(names) >= count else ["x", *(f"x{place + 1}" for place in range(1, count))]
        other = "mask" if others[0] == "*args" else others[0]
        after = "targets" if len(parts) > count + 1 else "None"
        by_name = f"a dict by the names of the arguments, {{'{first[0]}': …, '{other}': …}}"
        by_place = f"(({', '.join([*first, other])}), {after}), or "
        if signature is not None and others[0] != "*args" and names[count : count + 1] != (other,):
            by_place = ""  # a flag stands between them, or it is taken by name only
        call = "the model, called by the function forward=" if signature is None else str(signature)
        raise DataError(
            f"{where} is a {type(parts).__name__} of {_shown(parts)}, which can be read in two ways: its part {count} "
            f"may be one more input of {call}, such as {other}, or the targets. Write {by_place}{by_name}, for inputs; "
            f"(({', '.join(first)},), targets) for targets; or {', '.join(first)} alone"
        )

    def _check(self, inputs: Inputs, where: str) -> None:
        rows = leaves(inputs)
        if not rows:
            raise DataError(
                f"{where} is {_shown([inputs])}, without a tensor that has a row per point. If it is one example, use "
                "a DataLoader, whose collate_fn joins examples to tensors; if an object of a class of its own, make it "
                "a dataclass or a dict"
            )
        if self._signature is not None and any(isinstance(leaf, Examples) for leaf in rows):
            kinds = {type(each).__name__ for leaf in rows if isinstance(leaf, Examples) for each in leaf}
            raise DataError(
                f"{where} holds a list of {' and '.join(sorted(kinds))}, and the model is called with tensors: "
                f"{self._signature}. Join them to tensors in the DataLoader's collate_fn, by a tokenizer for example; "
                "or pass forward=lambda model, batch: …, which is given the list as it came"
            )
        if self._bags:
            refuse_bags([leaf for leaf in rows if isinstance(leaf, Tensor)], where)

    def _first_time(self, what: str) -> bool:
        new = what not in self._logged
        self._logged.add(what)
        return new


def _has_rows(part: Any) -> bool:
    return isinstance(part, Tensor | np.ndarray) and part.ndim > 0


def _are_texts(part: Any) -> bool:
    return isinstance(part, Examples) and all(isinstance(each, str | bytes) for each in part)


def _targets_inside(item: Any) -> Any:
    """The targets in a dataclass, or in dicts of one example each, by the usual names; None where there are none."""
    fields = fields_of(item)
    if fields:
        return next((fields[name] for name in TARGETS if name in fields), None)
    if not isinstance(item, Examples) or not all(isinstance(each, Mapping) for each in item):
        return None
    name = next((name for name in TARGETS if all(name in each for each in item)), None)
    return None if name is None else Examples(each[name] for each in item)


def _looks_like_targets(part: Any, points: int | None) -> bool:
    """Whether a part has one number per point, and no yes or no, which could be a mask."""
    if not isinstance(part, Tensor):
        return part is None
    return part.dim() > 0 and len(part) == points == part.numel() and part.dtype != torch.bool


def _fits_argument(part: Any, first: Any, names: Sequence[str]) -> bool:
    """Whether one of these arguments usually is like this part: lengths are integers, a mask has the inputs' shape."""
    if not isinstance(part, Tensor):
        return False
    integers = part.dim() == 1 and kind_of(part)["numbers"] == "i"
    masks = isinstance(first, Tensor) and first.shape == part.shape
    return any((integers and name in LENGTHS) or (masks and "mask" in name) for name in names)


def _check_rows(inputs: Inputs, targets: Any, where: str) -> None:
    """Refuse targets of another number of points than the inputs."""
    rows = lengths(inputs)
    for each in tensors(targets):
        if rows and each.dim() and len(each) not in rows:
            raise DataError(
                f"{where} has {len(each)} targets, and its inputs {_shown([inputs])} have {rows[0]} rows; one row of "
                "targets per point is needed: look at how the batch was put together"
            )


def _refuse_list(parts: Sequence[Tensor]) -> NoReturn:
    raise DataError(
        f"a list of {_shown(parts)} can be read as one batch of inputs and targets, and as {len(parts)} batches; pass "
        "one batch as a tuple: tuple(batch), or ((first, second), None) if both are inputs; or batches as a list of "
        "tuples of inputs alone: [(first,), (second,)]"
    )


def _shown(parts: Any) -> str:
    """What came, by types and shapes."""
    return ", ".join(
        f"{str(each.dtype).removeprefix('torch.')} {tuple(each.shape)}" if isinstance(each, Tensor) else _named(each)
        for each in parts
    )


def _named(value: Any) -> str:
    keys = f" with the keys {', '.join(map(repr, value))}" if isinstance(value, Mapping) else ""
    return f"{type(value).__name__}{keys}"


@lru_cache
def _arguments(names: tuple[str, ...]) -> Any:
    kind: Any = namedtuple("Arguments", names, rename=True)
    kind.__reduce__ = lambda self: (_called, (names, tuple(self)))  # a class that pickle finds by its names
    return kind


def _called(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return _arguments(names)(*values)
