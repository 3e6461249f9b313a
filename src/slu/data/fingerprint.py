"""Numbers that depend on the content of examples alone: keys of single ones, a fingerprint of a pass over the data.

Random choices that belong to an example (its label, its signs, whether it is held out) are functions of its key, so
they do not change with the batch size or the order of the loader. Where copies of an example are to be treated each
for itself, they are numbered. The sum of the keys over a data set,
modulo 2⁶⁴, is an exact fingerprint that does not depend on the order either: do two passes see the same data?
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slu.data.masks import without_padding
from slu.data.structure import Examples, counts_points, is_masked, leaves, tensors
from slu.errors import ChangedDataError, DataError
from slu.seeds import derived_seed

# The increment and multipliers of the splitmix64 generator, as signed 64-bit numbers.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)

# Whole numbers that floating ones are read as, by their bytes: of float64 two, for the last bits of most are 0.
_WORDS = {8: torch.int32, 4: torch.int32, 2: torch.int16, 1: torch.int8}

# Batches of another size round differently; what a random layer changes is far larger.
_ROUNDING = 1e-3

_AT_ONCE = 1 << 20  # random numbers, of which each takes several of 64 bits

_TERMS = 1 << 17  # of the sums that keys are, which take 24 bytes each

# Modes of PIL's images that the type and shape of their pixels tell from each other.
_PLAIN_MODES = ("1", "L", "LA", "RGB", "RGBA", "I", "F", "I;16", "I;16B")

SAME_POINTS = (
    "Every pass must see the same points, in any order: fit with a loader that has no augmentation, no random sampling "
    "with replacement and drop_last=False; or read the data once, as solver='stream' and scale='factored' do"
)
"""What to do about data that change between passes."""


def example_keys(tree: Any, points: int) -> Tensor:
    """(points,) int64 keys of a batch; tensors whose first dimension is `points` count by rows, lists by elements.

    What stands at positions that a mask in the batch leaves out does not count, nor how many of them there are at
    either end (`without_padding`): a text has the same key however it is padded.

    Cost: one integer multiplication per number of the batch, two of those of 64 bits; about 12 MB, and a copy of
    each tensor that is padded or not contiguous.
    """
    tree = without_padding(tree)
    device = next((tensor.device for tensor in tensors(tree)), torch.device("cpu"))
    keys = torch.zeros(points, dtype=torch.int64, device=device)
    for place, leaf in enumerate(leaves(tree)):
        hashed = _hashed_tensor(leaf, points) if isinstance(leaf, Tensor) else _hashed_examples(leaf, points, device)
        keys = _mixed(keys + hashed + place)
    return keys


def _hashed_tensor(tensor: Tensor, points: int) -> Tensor:
    bits = tensor.detach().resolve_neg()
    bits = torch.view_as_real(bits.resolve_conj()) if bits.is_complex() else bits
    shape = (points, prod(bits.shape[1:])) if counts_points(tensor, points) else (1, -1)
    rows = bits.reshape(shape).contiguous()
    rows = rows.as_strided(rows.shape, (rows.shape[1], 1))  # a single column may have any stride
    if rows.is_floating_point() or rows.dtype.itemsize == 8:
        rows = rows.view(_WORDS[rows.dtype.itemsize])
    step = max(1, _TERMS // max(1, rows.shape[1]))
    sums = [
        torch.cat([_summed(some, place * _TERMS) for some in columns.split(step)])
        for place, columns in enumerate(rows.split(_TERMS, 1))
    ]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)


def _summed(rows: Tensor, start: int) -> Tensor:
    """(b,) of some columns, from `start` on among all."""
    terms = rows.to(torch.int64).mul_(_multipliers(start, start + _TERMS, rows.device)[: rows.shape[1]])
    # Of a word with few bits, such as those of 0 and 1, a product has few as well, all of them high.
    high = terms >> 32
    high &= (1 << 32) - 1
    terms ^= high
    return terms.sum(1)


def _hashed_examples(examples: Examples, points: int, device: torch.device) -> Tensor:
    rows = examples if counts_points(examples, points) else [examples]
    digests = (hashlib.blake2b(_whole_content(each), digest_size=8).digest() for each in rows)
    return torch.tensor([int.from_bytes(each, "little", signed=True) for each in digests], device=device)


def _whole_content(example: Any) -> bytes:
    try:
        return content_bytes(example)
    except RecursionError:
        raise DataError(
            f"an example, a {type(example).__name__}, holds itself or lists in lists too deep to be compared; convert "
            "it to numbers, strings, arrays, or flat lists and dicts of these"
        ) from None


def content_bytes(value: Any) -> bytes:
    """Bytes that two values share only if they are equal, in every process; with their lengths, so that ends show.

    The type of numbers is content. Tuples count as the lists of their elements, and what converts to an array as the
    array; of images palettes and transparency count as well.
    """
    if isinstance(value, Tensor):
        keys = _hashed_tensor(value.reshape(1, -1), 1).tolist()
        return content_bytes([str(value.dtype), list(value.shape), keys])
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):  # arrays, and images that convert to them
        array = np.asanyarray(value)
        return content_bytes([str(array.dtype), list(array.shape), _plain(array), *_colours(value)])
    if isinstance(value, Mapping):
        parts = sorted(content_bytes(key) + content_bytes(each) for key, each in value.items())
    elif isinstance(value, tuple | list):
        parts = [content_bytes(each) for each in value]
    elif isinstance(value, str | bytes):
        parts = [value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")]
    elif value is None or isinstance(value, Number):
        parts = [repr(value).encode()]
    else:
        raise DataError(
            f"an example holds a {type(value).__name__}, of which slu cannot tell whether two are equal; convert it to "
            "numbers, strings, arrays, or lists and dicts of these"
        )
    kind = "sequence" if isinstance(value, tuple | list) else type(value).__name__
    return f"{kind} {len(parts)}:".encode() + b"".join(f"{len(part)}:".encode() + part for part in parts)


def _plain(array: np.ndarray) -> Any:
    """An array as lists of Python's numbers, strings or objects."""
    if is_masked(array):
        raise DataError(
            "an example holds a masked array, and what stands at its masked places would count as numbers. Fill them, "
            "array.filled(0), and give the mask beside it if the model takes one"
        )
    if array.dtype.char in "gG":
        raise DataError(
            f"an example holds numbers of {array.dtype}, a type that neither Python nor torch has. Pass "
            f"array.astype('{'float64' if array.dtype.char == 'g' else 'complex128'}')"
        )
    if array.dtype.kind in "mM":  # some units would become dates, others numbers
        return np.where(np.isnat(array), np.array(None), array.astype("int64")).tolist()
    return np.asarray(array).tolist()


def _colours(value: Any) -> list[Any]:
    """What the pixels of one of PIL's images do not say of its colours; of anything else, and most images, nothing."""
    if not hasattr(value, "getpalette"):
        return []
    mode, transparent = value.mode, value.info.get("transparency")
    said = {} if mode in _PLAIN_MODES else {"mode": mode}
    if value.palette is not None:  # PIL copies what is transparent to the palette, at a time of its own
        own_alpha = value.palette.mode == "RGBA" and transparent is None
        said["palette"] = value.getpalette("RGBA" if own_alpha else "RGB")
    if transparent is not None:
        said["transparent"] = transparent
    return [said] if said else []


def uniforms(keys: Tensor, count: int, seed: int, purpose: str, copies: Tensor | None = None) -> Tensor:
    """(b, count) float64 numbers strictly inside (0, 1), a pure function of keys, seed and purpose.

    Of copies that are numbered, each has its own; the first has those without a number.
    """
    columns = torch.arange(count, device=keys.device)
    if copies is not None:  # not copies · count, which depends on the padding of a batch where outputs are of tokens
        columns = columns + (copies[:, None] << 32)
    return uniforms_at(columns, keys[:, None], seed, purpose)


def uniforms_at(columns: Tensor, keys: Tensor, seed: int, purpose: str) -> Tensor:
    """Those of some columns, one for each key or broadcast with the keys."""
    mixed = _mixed(_mixed(keys + derived_seed(seed, purpose)) + (columns + 1) * _STEP)
    # 52 bits and a half are exact in float64; of 53 the largest would round to 1.
    return (_shift_right(mixed, 12).double() + 0.5) * 2.0**-52


def random_signs(keys: Tensor, count: int, seed: int, purpose: str, dtype: torch.dtype, copies: Tensor) -> Tensor:
    """(b, count) signs, those of `uniforms` around a half; a few points at a time, for outputs may be many."""
    step = max(1, _AT_ONCE // max(1, count))
    parts = zip(keys.split(step), copies.split(step), strict=True)
    drawn = [(uniforms(some, count, seed, purpose, which) - 0.5).sign().to(dtype) for some, which in parts]
    return drawn[0] if len(drawn) == 1 else torch.cat(drawn)


@lru_cache(maxsize=8)
def _multipliers(start: int, stop: int, device: torch.device) -> Tensor:
    return _mixed(torch.arange(start + 1, stop + 1, device=device) * _STEP) | 1


def _mixed(values: Tensor) -> Tensor:
    """The output function of splitmix64; int64 arithmetic wraps around, as it should."""
    values = (values ^ _shift_right(values, 30)) * _FIRST
    values = (values ^ _shift_right(values, 27)) * _SECOND
    return values ^ _shift_right(values, 31)


def _shift_right(values: Tensor, places: int) -> Tensor:
    """A logical shift: torch's own keeps the sign."""
    return (values >> places) & ((1 << (64 - places)) - 1)


class CopyCounter:
    """Numbers the copies of equal examples in a pass: 0 for the first that comes, 1 for the second, and so on.

    Cost: 16 to 32 bytes per distinct example, three times that while the largest tables are merged; each example is
    searched for in at most log₂ n tables and merged as often.

    Numerics: exact, but for keys of 64 bits that coincide by chance, in n examples with a probability of n² / 2⁶⁵.
    """

    def __init__(self) -> None:
        # Sorted keys and how often each came, in tables that at least halve from one to the next.
        self._tables: list[tuple[np.ndarray, np.ndarray]] = []

    def __call__(self, keys: Tensor) -> Tensor:
        """(b,) how many equal examples came before each of a batch, in it and in the batches before."""
        distinct, places, counts = np.unique(keys.cpu().numpy(), return_inverse=True, return_counts=True)
        before = np.zeros_like(counts)
        for known, times in self._tables:
            at = np.searchsorted(known, distinct).clip(max=len(known) - 1)
            before += np.where(known[at] == distinct, times[at], 0)
        order = np.argsort(places, kind="stable")
        within = np.empty_like(order)
        within[order] = np.arange(len(order)) - np.repeat(counts.cumsum() - counts, counts)
        if len(distinct):
            self._add(distinct, counts)
        return torch.from_numpy(before[places] + within).to(keys.device)

    def _add(self, keys: np.ndarray, counts: np.ndarray) -> None:
        self._tables.append((keys, counts))
        while len(self._tables) > 1 and 2 * len(self._tables[-1][0]) > len(self._tables[-2][0]):
            (one, ones), (two, twos) = self._tables.pop(), self._tables.pop()
            both, counts = np.concatenate([one, two]), np.concatenate([ones, twos])
            order = np.argsort(both, kind="stable")  # a merge: both are sorted
            both, counts = both[order], counts[order]
            starts = np.flatnonzero(np.concatenate([[True], both[1:] != both[:-1]]))
            self._tables.append((both[starts], np.add.reduceat(counts, starts)))


@dataclass
class Fingerprint:
    """Counts and sums over one pass that do not depend on the order or the batches.

    Attributes:
        points: n.
        content: The sum of all example keys modulo 2⁶⁴: exact, so one changed pixel changes it.
        outputs: Σ f(x) over points and outputs that count, in float64.
        magnitude: Σ |f(x)|, the scale on which two sums of outputs are compared.
    """

    points: int = 0
    content: int = 0
    outputs: float = 0.0
    magnitude: float = 0.0

    def add(self, keys: Tensor, outputs: Tensor, counted: Tensor | None = None) -> None:
        """Points with their (b, t) outputs, and where these are of P positions, which (b, P) of them count."""
        self.points += len(outputs)
        self.content = (self.content + int(keys.sum())) % (1 << 64)
        detached = outputs.detach().to(torch.float64)
        if counted is not None:  # the others have any number of outputs, and any values
            detached = detached.reshape(*counted.shape, -1)[counted]
        self.outputs += float(detached.sum())
        self.magnitude += float(detached.abs().sum())

    def check_same(self, earlier: Fingerprint) -> None:
        """Raises ChangedDataError if this pass saw something else than an earlier one."""
        if self.points != earlier.points:
            raise ChangedDataError(
                f"the first pass over the data saw {earlier.points} points, a later one {self.points}. {SAME_POINTS}"
            )
        if self.content != earlier.content:
            raise ChangedDataError(
                f"the {self.points} points of a later pass differ in content from those of the first one. {SAME_POINTS}"
            )
        if abs(self.outputs - earlier.outputs) > _ROUNDING * max(self.magnitude, earlier.magnitude):
            raise ChangedDataError(
                "the model gives different outputs for the same data in two passes, in eval mode: "
                f"their sum went from {earlier.outputs:.6g} to {self.outputs:.6g}. "
                "Look for dropout or noise that ignores eval mode, or weights that are being trained meanwhile"
            )
