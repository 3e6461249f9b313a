"""The data of a comparison, checked before anything is fitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from slu.data import BatchReader, batches
from slu.data.structure import Inputs, lengths, take, tensors
from slu.errors import DataError, SettingError
from slu.seeds import fenced


@dataclass(frozen=True)
class EvaluationData:
    """What methods are fitted on and judged by.

    Attributes:
        train: For the fits.
        inside: Points like those (in-distribution); large scores here are false alarms.
        outside: Points unlike them (out-of-distribution), by name.
        examples: One input of every set, as a batch, by what a message calls the set: "train",
            "inside", "outside['svhn']".
        train_batch, batch: Points of the first batch of the train set, and of the inside set; None
            where inputs are no tensors.
        reader: How the network that is compared reads batches; None without a network.
    """

    train: Any
    inside: Any
    outside: Mapping[str, Any]
    examples: Mapping[str, Inputs]
    train_batch: int | None
    batch: int | None
    reader: BatchReader | None = None


def evaluation_data(train: Any, inside: Any, outside: Any, reader: BatchReader | None = None) -> EvaluationData:
    """Check that every set can be read, and those that are scored again and again in the same order.

    `reader` has read nothing yet, and reads batches as a fit of the network that is compared; None without a network.

    Raises:
        DataError: Empty, not finite, a generator, or other points or another order every time.
        SettingError: Outside sets without names.

    Cost: the first batch of each set, twice.
    """
    sets = outside_sets(outside)
    scored = {"inside": inside} | {f"outside[{name!r}]": data for name, data in sets.items()}
    firsts = {"train": _first(train, "train", reader)}
    firsts |= {name: _first_twice(data, name, reader) for name, data in scored.items()}
    examples, points = {}, {}
    for name, inputs in firsts.items():
        count = points[name] = next(iter(lengths(inputs)), None)
        examples[name] = inputs if count is None else take(inputs, slice(0, 1), count)
    return EvaluationData(train, inside, sets, examples, points["train"], points["inside"], reader)


def outside_sets(outside: Any) -> dict[str, Any]:
    """Outside sets by name; one that comes alone is called "outside"."""
    if not isinstance(outside, Mapping):
        return {"outside": outside}
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
    """Torch's random state is restored at the end, so that a train loader that shuffles by it gives the same order."""
    cards = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=cards):
        yield


def _first(data: Any, name: str, reader: BatchReader | None) -> Inputs:
    """The inputs of the first batch, checked."""
    with random_state_kept():
        try:
            return next(batches(data, torch.device("cpu"), reader=reader)).inputs
        except DataError as reason:
            raise DataError(f"{name}: {reason}") from reason


def _first_twice(data: Any, name: str, reader: BatchReader | None) -> Inputs:
    """The same, and checked to be the same when it is read again.

    In another random state: a score may draw numbers before it reads the loader, and a loader that
    shuffles by torch's state would then give it the points in another order than other scores.
    """
    inputs = _first(data, name, reader)
    if (reader or BatchReader()).is_one_batch(data):
        return inputs
    with fenced(0, "another reading"):
        again = _first(data, name, reader)
    one, two = tensors(inputs), tensors(again)
    same = len(one) == len(two) and all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, two, strict=True))
    if not same:
        raise DataError(
            f"{name}: the first batch was another one when the loader was read again, by torch's random state or by a "
            "generator of the loader's own; every method must score the same points in the same order. Pass a loader "
            "that neither shuffles nor augments (shuffle=False); only train may do that"
        )
    return inputs
