"""Data that are compared with what was read of them before: in an earlier pass, or by a run that was stopped.

Every batch of the loader has a number of points and a key, the sum of the keys of its points (inputs and targets, with
the names of a dict's entries in their order and the shapes of rows) modulo 2⁶⁴. Batch by batch these say whether a
resumed fit skips what it had read; their sums, which depend neither on the order nor on the batches, whether two whole
passes saw the same points. Keys do not depend on padding. Compared beside them are whether it stands before any of the
points, because a network with absolute positions has other outputs then; and how long rows are of which no mask says
where they end, if all batches have the same length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slu.data.batches import Batch, PointCount, batches
from slu.data.fingerprint import SAME_POINTS, example_keys
from slu.data.masks import padded_before, unmasked_lengths
from slu.data.reading import BatchReader
from slu.data.structure import Examples, Inputs, fields_of, tensors
from slu.errors import ChangedDataError

_MODULUS = 1 << 64
_EXACT = (1 << 53) - 1  # in any reader of JSON

_AUGMENTED = (
    "only if an augmentation changes every point in its place, Checkpoint(path, check_data=False) compares nothing, "
    "with calibration=val_loader or False"
)
_THE_SAME = f"Give the data of that run; {_AUGMENTED}"
_IN_ORDER = (
    f"Give the data of that run in the same order (shuffle=False, or a generator seeded as in that run); {_AUGMENTED}"
)


class Content(NamedTuple):
    """What some points are, by numbers that depend neither on their order nor on the batches.

    Attributes:
        points: How many.
        key: The sum of their keys modulo 2⁶⁴.
        padded_before: Of which inputs padding stands before any, as of `padded_before`: 1 of the inputs, 2 of those of
            a decoder, or the sum.
        lengths: A key of how long rows without a mask are; 0 where batches differ in it, None where it is not known,
            which are not compared: by chance every batch of a pass may have one of the longest rows.
    """

    points: int
    key: int
    padded_before: int = 0
    lengths: int | None = None

    def plus(self, other: Content) -> Content:
        """Of both."""
        key, padded = (self.key + other.key) % _MODULUS, self.padded_before | other.padded_before
        lengths = self.lengths if self.lengths == other.lengths or not other.points else 0
        return Content(self.points + other.points, key, padded, lengths if self.points else other.lengths)

    def differs(self, other: Content) -> bool:
        """Whether these are other points, or the same padded otherwise."""
        return self[:3] != other[:3] or self._other_lengths(other)

    def _other_lengths(self, other: Content) -> bool:
        return bool(self.lengths and other.lengths) and self.lengths != other.lengths

    def other_padding(self, earlier: Content, what: str, when: str) -> str | None:
        """In words, of the same points: padding stands before some of them here or earlier, but not in both."""
        differing = self.padded_before ^ earlier.padded_before
        if self[:2] != earlier[:2]:
            return None
        if not differing:
            return self._other_length(what, when) if self._other_lengths(earlier) else None
        which = "" if differing & 1 else " (their inputs of the decoder)"
        here = self.padded_before & (differing & 1 or 2)
        one, other = ("here", f"in {when}") if here else (f"in {when}", "here")
        return (
            f"padding stands before some of the {self.points} points of {what}{which} {one}, and before none {other}. "
            "Pad on the same side as then (padding_side of a tokenizer), in batches that pad as then"
        )

    def _other_length(self, what: str, when: str) -> str:
        return (
            f"the {self.points} points of {what} end in more or fewer zeros than in {when}, and no mask says whether "
            "these are padding. Pad to the same length as then, or give the model's mask beside the inputs"
        )


class ComparedData:
    """The batches of some data, refused where they are not what was read of them before.

    Args:
        loader: A loader of batches, an iterator of them, or one batch.
        reader: How the model's batches are read.
        count: How many points the inputs of a batch are, where their shapes leave it open.
        what: The data are, in messages.

    Cost: a key per point in every pass, and 24 bytes per batch of the last one.
    """

    def __init__(
        self, loader: Any, reader: BatchReader, count: Callable[[Inputs], int], what: str = "the data"
    ) -> None:
        self.loader = loader
        self._reader = reader
        self._count = PointCount(count)
        self.what = what
        self._read: list[Content] = []
        self._before: list[Content] = []
        self._by_earlier_run = False
        self._least = 0
        self.whole: Content | None = None
        """Of the first whole pass, also that of an earlier run; None before it."""

    def __len__(self) -> int:
        return 1 if self._reader.is_one_batch(self.loader) else len(self.loader)

    @property
    def batches_read(self) -> int:
        """In the pass that runs, or in the last one."""
        return len(self._read)

    def first_batches(self, count: int) -> Tensor:
        """(count, 3) int64 points, keys and padding before points, of the first batches of this pass, for a file."""
        signed = [(n, key - _MODULUS * (key >= _MODULUS // 2), padded) for n, key, padded, _ in self._read[:count]]
        return torch.tensor(signed, dtype=torch.int64).view(-1, 3)

    def expect(self, whole: Content | None, first_batches: Tensor | None = None) -> None:
        """Compare with an earlier run: every pass as a whole, and the next one batch by batch, in order.

        Args:
            whole: What a whole pass of it saw, if there was one.
            first_batches: What it had read of the pass in which it was stopped.
        """
        self.whole, self._by_earlier_run = whole, True
        rows = [] if first_batches is None else first_batches.tolist()
        self._before = [Content(points, key % _MODULUS, padded) for points, key, padded in rows]

    def expect_at_least(self, whole: Content | None, first_batches: Tensor | None = None) -> None:
        """Compare with an earlier run only whether a pass has as many points; arguments as of `expect`."""
        read = 0 if first_batches is None else int(first_batches[:, 0].sum())
        self._least = max(read, 0 if whole is None else whole.points)

    def checked_batches(self, device: torch.device) -> Iterator[Batch]:
        """As `slu.data.batches` gives them.

        Raises:
            ChangedDataError: They differ from what was read before; the message names the first batch that does.
        """
        self._read, total = [], Content(0, 0)
        before, self._before = _InOrder(self._before, self.what), []
        for batch in batches(self.loader, device, once=True, reader=self._reader):
            points = self._count(batch)
            keys = _content_keys(batch, points)
            key, lengths = int(keys.sum()) % _MODULUS, _key_of(unmasked_lengths((batch.inputs, batch.targets))) & _EXACT
            self._read.append(Content(points, key, padded_before(batch.inputs), lengths))
            total = total.plus(self._read[-1])
            before.check(batch.index, points, total)
            yield batch
        before.check_reached(total.points, self._least)
        if self.whole is None:
            self.whole = total
        elif total.differs(self.whole):
            raise ChangedDataError(self._difference(self.whole, total))

    def _difference(self, earlier: Content, now: Content) -> str:
        when, cure = ("the first pass", f". {SAME_POINTS}")
        if self._by_earlier_run:
            when, cure = "the run that began it", f". {_THE_SAME}"
        padding = now.other_padding(earlier, self.what, when)
        if padding is not None:
            return padding
        if earlier.points != now.points:
            return f"{self.what} had {earlier.points} points in {when}, here they have {now.points}{cure}"
        return f"the {now.points} points of {self.what} differ in content from those of {when}{cure}"


def _content_keys(batch: Batch, points: int) -> Tensor:
    """(b,) keys of inputs and targets that also tell which number stands where."""
    number = torch.tensor(_key_of(_layout((batch.inputs, batch.targets))))
    device = next((tensor.device for tensor in tensors(batch.inputs)), torch.device("cpu"))
    return example_keys((batch.inputs, (batch.targets, number.to(device))), points)


def _key_of(plain: Any) -> int:
    """64 bits of names and numbers, with a sign."""
    return int.from_bytes(hashlib.blake2b(repr(plain).encode(), digest_size=8).digest(), "little", signed=True)


def _layout(tree: Any) -> Any:
    """Names and shapes. Not the length of rows: padding at their end is free, and other numbers have another key."""
    if isinstance(tree, Tensor):
        return tree.dim(), *tree.shape[2:]
    if isinstance(tree, tuple | list) and not isinstance(tree, Examples):
        return [_layout(each) for each in tree]
    named = tree if isinstance(tree, Mapping) else fields_of(tree)
    return [(str(name), _layout(each)) for name, each in named.items()]  # the held-out points depend on their order


class _InOrder:
    """The batches that an earlier run had read, compared wherever a batch of now ends where one of them did."""

    def __init__(self, before: Sequence[Content], what: str) -> None:
        self._what = what
        self._ends = {each.points: each for each in accumulate(before, Content.plus)}
        self._points = max(self._ends, default=0)
        self._same = 0  # points up to which the content was the same

    def check(self, index: int, points: int, total: Content) -> None:
        """A batch of so many points was read, and all up to it."""
        begun = total.points - points
        if begun >= self._points:
            return
        there = self._ends.get(total.points)
        if there is None and total.points > self._points:
            raise ChangedDataError(
                f"the run that began it had read {self._points} points of {self._what}, and batch {index} here goes on "
                f"from point {begun} to {total.points}, so they cannot be compared. Give batches of which one ends at "
                f"point {self._points}, such as those of that run"
            )
        padding = None if there is None else total.other_padding(there, self._what, "the run that began it")
        if padding is not None:
            raise ChangedDataError(padding)
        if there is not None and there.key != total.key:
            which = f"batch {index} of {self._what} has {points} points and"
            if begun != self._same:  # batches of another size: only their common ends were compared
                which = f"the points {self._same} to {total.points} of {self._what}, up to batch {index}, have"
            raise ChangedDataError(
                f"{which} other content than in the run that began it, or another order. {_IN_ORDER}"
            )
        self._same = total.points if there is not None else self._same

    def check_reached(self, points: int, least: int) -> None:
        """The data have ended after so many points, and must have at least so many."""
        least = max(least, self._points)
        if points < least:
            raise ChangedDataError(
                f"{self._what} end after {points} points, the run that began it had read {least}. Give the data "
                "of that run"
            )
