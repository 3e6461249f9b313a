"""What is compared: names for methods, and methods that are made only when their turn comes."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from torch import nn

from slu.comparing.detectors import Detector, Predictor, detector
from slu.core.protocols import Method, Score
from slu.core.settings import Settings
from slu.errors import SettingError
from slu.likelihoods import Likelihood, describe

Maker: TypeAlias = Callable[[], Method]
Compared: TypeAlias = Method | Predictor | Callable[..., Any]
Candidates: TypeAlias = Compared | Sequence[Compared] | Mapping[str, Compared]
"""Methods and detectors; or a mapping from names to these, or to functions without arguments that make one.

A detector is a function of a batch's inputs or an object with `predict`, see `slu.comparing.detectors`."""


@dataclass(frozen=True)
class Candidate:
    """A name and how to get the method; `make` may refuse, a budget that is too small for example.

    `ready` where there is a method already, which `make` only returns; `reading` where its row has
    another reading than the score's default.
    """

    name: str
    make: Maker
    ready: bool = False
    reading: str | None = None


@dataclass(frozen=True)
class ReadBy:
    """A function that makes a method, and the reading it is compared by where none is asked for."""

    make: Maker
    reading: str

    def __call__(self) -> Method:
        """The method."""
        return self.make()


def candidates(methods: Candidates) -> list[Candidate]:
    """All methods that were given, by name.

    Raises:
        SettingError: None, or something that is no method; the message says what came.
    """
    alone = _method(methods)
    methods = methods if alone is None else [alone]
    if isinstance(methods, Mapping):
        named = [_named(name, method) for name, method in methods.items()]
    elif isinstance(methods, Iterable) and not isinstance(methods, str):
        listed: list[Method] = []
        for each in methods:
            method = _method(each)
            if method is None:
                raise _no_method(each, "; what is made by a function goes into a mapping: {'name': function}")
            listed.append(method)
        named = [_named(name, method) for name, method in zip(names(listed), listed, strict=True)]
    else:
        raise _no_method(methods, ", a sequence of them, or a mapping from names to them")
    if not named:
        raise SettingError("there is no method to compare; pass at least one, [SLU(model, 'classification')]")
    return named


def _named(name: Any, method: Any) -> Candidate:
    if not isinstance(name, str) or not name.strip():
        raise SettingError(f"a method's name must be a text, got {name!r}")
    ready = _method(method, name)
    if ready is not None:
        return Candidate(name, lambda: ready, ready=True)
    if not callable(method) or isinstance(method, Score | nn.Module):
        raise _no_method(method, ", or a function without arguments that makes one")

    def make() -> Method:
        came = method()
        made = _method(came, name)
        if made is None:
            raise _no_method(came, "")
        return made

    return Candidate(name, make, reading=method.reading if isinstance(method, ReadBy) else None)


def _method(value: Any, name: str | None = None) -> Method | None:
    """The value itself if it is a method, what stands for it if it is a detector, and None if it is neither."""
    if isinstance(value, Method) and not isinstance(value, type):
        return value
    return None if isinstance(value, Score | Mapping) else detector(value, name)


def _no_method(came: Any, further: str) -> SettingError:
    name = type(came).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    what = f"the class {came.__name__}" if isinstance(came, type) else f"{article} {name}"
    if isinstance(came, Score) and not isinstance(came, type):
        what += ", which is fitted already,"
    return SettingError(
        f"{what} came where a method is needed (an object with fit and cost, like SLU(...)) or a "
        f"detector (a function from the inputs of a batch to scores){further}"
    )


def names(methods: Sequence[Method]) -> list[str]:
    """The class of each; where several are of one class, with the fewest settings in which they differ.

    Settings that are the same for all are not named, and methods without such a difference are
    counted: "SLU", "SLU 2".
    """
    labels = [method.name if isinstance(method, Detector) else type(method).__name__ for method in methods]
    for name, count in Counter(labels).items():
        if count > 1:
            places = [place for place, other in enumerate(labels) if other == name]
            words = _differences([settings_of(methods[place]) for place in places])
            for place, word in zip(places, words, strict=True):
                labels[place] = f"{name} {word}".strip()
    counts = [labels[: place + 1].count(name) for place, name in enumerate(labels)]
    return [name if count == 1 else f"{name} {count}" for name, count in zip(labels, counts, strict=True)]


def _differences(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    flat = [_flat(each) for each in settings]
    keys = [key for key in flat[0] if len({repr(each.get(key)) for each in flat}) > 1]
    # The top level comes first: the rank, not the size of the sketch that followed from it.
    keys.sort(key=lambda key: key.count(" "))
    words: list[list[str]] = [[] for _ in flat]
    for key in keys:
        values = [each.get(key) for each in flat]
        longer = [
            [*each, value if isinstance(value, str) else f"{key} {value}"]
            for each, value in zip(words, values, strict=True)
        ]
        # A setting that follows from those before it adds nothing.
        if len(set(map(tuple, longer))) > len(set(map(tuple, words))):
            words = longer
    return [", ".join(each) for each in words]


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in settings.items():
        word = f"{before}{key.replace('_', ' ')}"
        flat |= _flat(value, f"{word} ") if isinstance(value, Mapping) else {word: value}
    return flat


def settings_of(method: Method) -> dict[str, Any]:
    """The settings of a method for JSON: what its `settings()` gives, public attributes that are plain data, and its
    likelihood."""
    plain = {}
    attributes = {key: value for key, value in getattr(method, "__dict__", {}).items() if not key.startswith("_")}
    for key, value in (attributes | _declared(method)).items():
        with suppress(TypeError, ValueError, RecursionError):  # what JSON cannot hold is no setting
            plain[key] = json.loads(json.dumps(value, default=_as_dict, allow_nan=False))
    return plain


def _declared(method: Any) -> dict[str, Any]:
    settings = getattr(method, "settings", None)
    if isinstance(settings, Settings):
        return settings.header() | {"likelihood": settings.likelihood}
    return cast(dict[str, Any], settings()) if callable(settings) else {}


def _as_dict(value: Any) -> dict[str, Any]:
    """For JSON, what it cannot write itself: a likelihood, a mapping, a dataclass."""
    if isinstance(value, type):
        raise TypeError(f"the class {value.__name__} is no plain data")
    if isinstance(value, Likelihood):
        return describe(value)
    if isinstance(value, Mapping):
        return {**value}
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
