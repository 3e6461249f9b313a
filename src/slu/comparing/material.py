"""The data of a comparison, looked at before hours are spent on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from slu.curvature import batches, is_one_batch
from slu.curvature.batches import Inputs, take, tensors
from slu.errors import DataError, SettingError

ONE = "outside"
"""The name of an outside set that was given without one."""


@dataclass(frozen=True)
class Material:
    """What methods are fitted on and judged by.

    Attributes:
        train: For the fits.
        inside: Points like those; larger scores here are false alarms.
        outside: Points unlike them, by name.
        example: One input of the inside set, as a batch.
        batch: Points of the inside set's first batch; None where inputs are no tensors.
    """

    train: Any
    inside: Any
    outside: Mapping[str, Any]
    example: Inputs
    batch: int | None


def material(train: Any, inside: Any, outside: Any) -> Material:
    """Check that every set can be read, and again and again in the same order.

    Raises:
        DataError: Empty, not finite, a generator, or other points or another order every time: then
            scores of two methods could not be compared point by point. The message names the set.
        SettingError: Outside sets without names.

    Cost: the first batch of each set, twice.
    """
    sets = outside_sets(outside)
    _first(train, "train")
    example = _first_twice(inside, "inside")
    for name, data in sets.items():
        _first_twice(data, f"outside[{name!r}]")
    found = [len(tensor) for tensor in tensors(example) if tensor.dim()]
    points = found[0] if found else None
    return Material(train, inside, sets, example if points is None else take(example, slice(0, 1), points), points)


def outside_sets(outside: Any) -> dict[str, Any]:
    """Outside sets by name; one that comes alone is called "outside"."""
    if not isinstance(outside, Mapping):
        return {ONE: outside}
    for name in outside:
        if not isinstance(name, str) or not name.strip():
            raise SettingError(
                f"outside must map names to data, {{'svhn': loader}}; the name {name!r} came. A batch that is itself a "
                "dict goes into one: {'svhn': batch}"
            )
    if not outside:
        raise SettingError("there is no outside set; pass at least one, {'svhn': loader}")
    return dict(outside)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Torch's random state is put back at the end: a loader that shuffles by it does so alike every time."""
    cards = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=cards):
        yield


def _first(data: Any, name: str) -> Inputs:
    """The inputs of the first batch, checked."""
    with random_state_kept():
        try:
            return next(batches(data, torch.device("cpu"))).inputs
        except DataError as reason:
            raise DataError(f"{name}: {reason}") from reason


def _first_twice(data: Any, name: str) -> Inputs:
    """The same, and checked to be the same when it is read again."""
    found = _first(data, name)
    if is_one_batch(data):
        return found
    one, two = tensors(found), tensors(_first(data, name))
    same = len(one) == len(two) and all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, two, strict=True))
    if not same:
        raise DataError(
            f"{name}: the first batch was another one when the loader was read again, by a random generator of the "
            "loader's own; every method must score the same points in the same order. Pass a loader that neither "
            "shuffles nor augments (shuffle=False)"
        )
    return found
