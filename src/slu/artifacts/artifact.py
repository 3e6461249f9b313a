"""What every fitted score writes and checks: the weights it belongs to, the likelihood, how the model was called.

A method adds its own settings, state and tensors; the checks against scoring with another network are here.
"""

from __future__ import annotations

import dis
import hashlib
import platform
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor, nn

from slu.artifacts import stored
from slu.artifacts.files import read, write
from slu.data import Format
from slu.errors import DamagedFileError, MismatchError, MisuseWarning, SettingError, SluError, StorageError, printable
from slu.gradients import Forward, Network
from slu.likelihoods import Likelihood, describe, resolve, restore
from slu.parameters import difference, fingerprint, unwrapped

_FINGERPRINT = re.compile(r"(scalar|\d{1,18}(x\d{1,18})*) \w+ [0-9a-f]+")  # as `slu.parameters.described` gives it


@dataclass(frozen=True)
class Loaded:
    """What a file holds that fits the method and the model.

    Attributes:
        settings: The method's own, as they were saved.
        state: The result of the fit, beside its tensors; empty where a method has none.
        likelihood: Restored, or the user's own.
        tensors: On the CPU.
        weights: The fingerprint of the network that was fitted.
        reading: The format of the batches that were read, for `BatchReader.format`; empty in files without it.
    """

    settings: dict[str, Any]
    state: dict[str, Any]
    likelihood: Likelihood
    tensors: dict[str, Tensor]
    weights: dict[str, str]
    reading: Format


def save(  # noqa: PLR0913 (the parts of a header)
    path: str | Path,
    method: str,
    network: Network,
    likelihood: Likelihood,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    weights: Mapping[str, str],
    state: Mapping[str, Any] | None = None,
) -> None:
    """Write a fitted score, tied to the exact weights it was fitted on.

    `weights` is their fingerprint at the fit: the network may have been trained further since.

    Raises:
        NumericalError: What was fitted is not finite.
    """
    stored.check_fitted(tensors)
    header = {
        "method": method,
        "settings": {**settings, "params": list(network.selection.names)},
        "state": dict(state or {}),
        "likelihood": describe(likelihood),
        "own_forward": network.own_forward is not None,
        "reading": network.reader.format.to_plain(),
        "forward": None if network.own_forward is None else described_forward(network.own_forward),
        "fingerprint": dict(weights),
        "versions": versions(),
        "tensors": stored.inventory(tensors),
    }
    write(path, tensors, header)


def load(
    path: str | Path,
    method: str,
    model: nn.Module,
    *,
    likelihood: str | Likelihood | None,
    forward: Forward | None,
    check_weights: bool = True,
) -> Loaded:
    """The content of a file that fits this method and this model; without `check_weights` the values may be others.

    Raises:
        StorageError: Another method's file.
        DamagedFileError: A field or a tensor is not what `save` writes.
        MismatchError: Another model, changed weights, or a likelihood or forward of the user's own
            that was not given, or is given but was not fitted with.

    Warns:
        MisuseWarning: Another forward is given.
    """
    header, tensors = read(path)
    with sensible(path):
        if "method" not in header:
            raise StorageError(f"{path} holds no score, {method} cannot load it; see `slu inspect` for what it is")
        header = checked(header, tensors)
    if header["method"] != method:
        other = header["method"]
        raise StorageError(
            f"{path} holds a score of {other}, {method} cannot load it; see `slu inspect` for what it is"
        )
    model = unwrapped(model)
    weights = fingerprint(model)
    given = None if likelihood is None else resolve(likelihood)
    with sensible(path):
        _check_network(path, header, model, weights, values=check_weights)
        if header["own_forward"] and forward is None:
            raise MismatchError(f"{path} was fitted with a forward= of its own; pass the same function as forward=")
        if forward is not None and not header["own_forward"]:
            raise MismatchError(f"{path} was fitted without a forward=; leave it out")
        _warn_of_forward(path, header.get("forward"), forward)
        try:
            own = restore(header["likelihood"], given)
        except MismatchError as reason:
            raise MismatchError(f"{path}: {reason}") from None
        reading = Format.from_plain(header.get("reading"))
        settings, state, kept = dict(header["settings"]), header["state"], header["fingerprint"]
        return Loaded(settings, state, own, tensors, kept, reading)


def checked(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The header of a score, where what all methods write in it can be what it is.

    Raises:
        DamagedFileError: It cannot, or the tensors are others than it says.
    """
    stored.text(header, "method")
    stored.check_inventory(header, tensors)
    stored.check_finite(tensors)
    stored.texts(stored.table(header, "settings"), "params")
    stored.table(header, "state")
    stored.truth(header, "own_forward")
    check_weights(header, "fingerprint")
    plain = stored.table(header, "versions")
    _ = [stored.text(plain, key) for key in plain]
    check_likelihood(header)
    if header.get("forward") is not None:
        forward = stored.table(header, "forward")
        stored.text(forward, "name")
        if stored.field(forward, "hash") is not None:
            stored.text(forward, "hash")
    return header


def check_weights(plain: Mapping[str, Any], name: str) -> None:
    """Refuse what is no fingerprint of weights."""
    weights = stored.table(plain, name)
    for key in weights:
        if not _FINGERPRINT.fullmatch(stored.text(weights, key)):
            raise stored.wrong(f"the fingerprint of {key!r}", weights[key], "a shape, a type and a hash")


def check_likelihood(plain: Mapping[str, Any]) -> None:
    """Refuse what describes no likelihood; each knows the range of its own numbers."""
    described = stored.table(plain, "likelihood")
    if stored.field(described, "name") is None:
        _ = stored.text(described, "class"), stored.text(described, "module")
        return
    stored.text(described, "name")
    settings = stored.table(described, "settings")
    for key, value in settings.items():
        if value is not None:
            _ = stored.numbers(settings, key) if isinstance(value, list) else stored.number(settings, key)


_RULE = 2  # of the hash: before, whole numbers did not count
_LOADING = ("LOAD_CONST", "LOAD_SMALL_INT", "RETURN_CONST")


def described_forward(forward: Forward) -> dict[str, Any]:
    """The name of a function and a hash of what it does: names, constants and nested functions of its code.

    Not of the bytecode, which is another one in every version of Python. Numbers and texts that it takes from outside
    count where they are its defaults or in its closure. The hash is None where there is no code of Python to read.
    """
    function: Any = forward
    given: list[Any] = []
    while isinstance(function, partial):
        given += [*function.args, *function.keywords.values()]
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    plain = function if hasattr(function, "__code__") else getattr(function, "__func__", type(function).__call__)
    code = getattr(plain, "__code__", None)
    given += [*(getattr(plain, "__defaults__", None) or ()), *(getattr(plain, "__kwdefaults__", None) or {}).values()]
    given += [cell.cell_contents for cell in getattr(plain, "__closure__", None) or ()]
    parts = None if code is None else [_code_parts(code), [repr(each) for each in given if _is_plain(each)]]
    hashed = None if parts is None else hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()
    return {"name": f"{named.__module__}.{named.__qualname__}", "hash": hashed, "rule": _RULE}


def _code_parts(code: CodeType) -> list[Any]:
    constants = {repr(each) for each in _flat(code.co_consts) if isinstance(each, str | bytes | float | complex)}
    # None, slices and small whole numbers are constants in some versions of Python and not in others.
    loaded = _flat(each.argval for each in dis.get_instructions(code) if each.opname in _LOADING)
    numbers = {repr(each) for each in loaded if isinstance(each, int)}
    inner = [_code_parts(each) for each in code.co_consts if isinstance(each, CodeType)]
    names = sorted({*code.co_names, *code.co_freevars})
    return [names, code.co_argcount, sorted(constants), sorted(numbers), inner]


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, slice):
            yield from (value.start, value.stop, value.step)
        elif isinstance(value, tuple | frozenset):
            yield from _flat(value)
        else:
            yield value


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | bytes | int | float | complex | tuple)


def _warn_of_forward(path: str | Path, fitted: Mapping[str, Any] | None, forward: Forward | None) -> None:
    """Say that a score is loaded with another forward than it was fitted with; of older files that is not known."""
    if fitted is None or forward is None:
        return
    given = described_forward(forward)
    readable = fitted["hash"] and fitted.get("rule") == _RULE
    same = given["hash"] == fitted["hash"] if readable else given["name"] == fitted["name"]
    if not same:
        warnings.warn(
            f"{path} was fitted with forward={printable(fitted['name'], keep='')} "
            f"({printable(str(fitted['hash']), keep='')}), and is loaded with "
            f"forward={given['name']} ({given['hash']}), which has other code: its scores mean something only if both "
            "compute the same. Pass the function of the fit, or fit anew",
            MisuseWarning,
            stacklevel=4,
        )


def _check_network(
    path: str | Path, header: Mapping[str, Any], model: nn.Module, weights: Mapping[str, str], *, values: bool
) -> None:
    expected = header["fingerprint"]
    if not values:  # the last word is the hash
        expected, weights = (
            {name: f"{text.rpartition(' ')[0]} -" for name, text in each.items()} for each in (expected, weights)
        )
    differs = difference(expected, weights)
    if differs:
        raise MismatchError(
            f"{path} was fitted on another network: {differs}. Load the weights it was fitted on, or fit anew"
        )
    fitted = header["settings"]["params"]
    chosen = set(fitted)
    names = [name for name, _ in model.named_parameters() if name in chosen]
    # The same weights in another order would be sketched with each other's coordinates.
    if names != fitted:
        first = next(pair for pair in zip_longest(fitted, names) if pair[0] != pair[1])
        before, now = first
        raise MismatchError(
            f"{path} was fitted on a network whose parameters stand in another order: {before} came where "
            f"{now} is now. Define its modules in the order they had, or fit anew"
        )


@contextmanager
def sensible(path: str | Path) -> Iterator[None]:
    """Turns errors from a header that lacks a field, or has a wrong one, into one that names the file."""
    try:
        yield
    except DamagedFileError as reason:
        if str(path) in str(reason):
            raise
        raise DamagedFileError(f"{path}: {reason}") from reason
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as reason:
        if isinstance(reason, SluError) and not isinstance(reason, SettingError):
            raise
        why = f"{reason} is missing" if isinstance(reason, KeyError) else reason
        raise DamagedFileError(f"the header of {path} makes no sense: {why}. Fit and save anew") from reason


def versions() -> dict[str, str]:
    """Of everything that numbers in a file may depend on."""
    return {
        "slu": _own_version(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def _own_version() -> str:
    try:
        return metadata.version("slu")
    except (OSError, metadata.PackageNotFoundError):  # a file that cannot be read, for which no save should fail
        return "unknown"
