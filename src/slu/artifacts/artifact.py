"""What every fitted score writes and checks: the weights it belongs to, the likelihood, how the model was called.

A method adds its own settings, state and tensors; the checks against scoring with another network are here.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor, nn

from slu.artifacts.files import read, write
from slu.data import Format
from slu.errors import DamagedFileError, MismatchError, SettingError, StorageError
from slu.gradients import Forward, Network
from slu.likelihoods import Likelihood, describe, resolve, restore
from slu.parameters import difference, fingerprint

DROPPED = "its file is of format 1, whose combined reading was made of other views"
"""Why a score of such a file has no calibration any more."""


@dataclass(frozen=True)
class Loaded:
    """What a file holds that fits the method and the model.

    Attributes:
        settings: The method's own, as they were saved.
        state: The result of the fit, beside its tensors; empty where a method has none.
        likelihood: Restored, or the user's own.
        tensors: On the CPU.
        weights: The fingerprint of the network.
        format: The version of the file.
        reading: The format of the batches that were read, for `BatchReader.format`; empty in files without it.
    """

    settings: dict[str, Any]
    state: dict[str, Any]
    likelihood: Likelihood
    tensors: dict[str, Tensor]
    weights: dict[str, str]
    format: int
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
    """
    header = {
        "method": method,
        "settings": {**settings, "params": list(network.selection.names)},
        "state": dict(state or {}),
        "likelihood": describe(likelihood),
        "own_forward": network.has_own_forward,
        "reading": network.reader.format.to_plain(),
        "fingerprint": dict(weights),
        "versions": versions(),
    }
    write(path, tensors, header)


def load(
    path: str | Path,
    method: str,
    model: nn.Module,
    *,
    likelihood: str | Likelihood | None,
    forward: Forward | None,
) -> Loaded:
    """The content of a file that fits this method and this model.

    Raises:
        StorageError: Another method's file.
        MismatchError: Another model, changed weights, or a likelihood or forward of the user's own
            that was not given, or is given but was not fitted with.
    """
    header, tensors = read(path)
    with sensible(path):
        header = upgraded(header)
    if header.get("method") != method:
        holds = f"a score of {header['method']}" if header.get("method") else "no score"
        raise StorageError(f"{path} holds {holds}, {method} cannot load it; see `slu inspect` for what it is")
    weights = fingerprint(model)
    given = None if likelihood is None else resolve(likelihood)
    with sensible(path):
        _check_network(path, header, model, weights)
        if header["own_forward"] and forward is None:
            raise MismatchError(f"{path} was fitted with a forward= of its own; pass the same function as forward=")
        if forward is not None and not header["own_forward"]:
            raise MismatchError(f"{path} was fitted without a forward=; leave it out")
        try:
            own = restore(header["likelihood"], given)
        except MismatchError as reason:
            raise MismatchError(f"{path}: {reason}") from None
        reading = Format.from_plain(header.get("reading"))
        settings, state = dict(header["settings"]), dict(header["state"])
        return Loaded(settings, state, own, tensors, weights, header["format"], reading)


def _check_network(path: str | Path, header: Mapping[str, Any], model: nn.Module, weights: Mapping[str, str]) -> None:
    differs = difference(header["fingerprint"], weights)
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
        raise MismatchError(
            f"{path} was fitted on a network whose parameters stand in another order: {first[0]} came where "
            f"{first[1]} is now. Define its modules in the order they had, or fit anew"
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
    except (KeyError, TypeError, AttributeError, SettingError) as reason:
        why = f"{reason} is missing" if isinstance(reason, KeyError) else reason
        raise DamagedFileError(f"the header of {path} makes no sense: {why}. Fit and save anew") from reason


def upgraded(header: dict[str, Any]) -> dict[str, Any]:
    """The header of a score as this version writes it, from one of format 1; others are returned as they are.

    A calibration of format 1 is left out: the combined reading is made of other views since.
    """
    if header["format"] > 1 or "method" not in header:
        return header
    if header["method"] != "SLU":
        return {**header, "state": {}}
    settings = dict(header["settings"])
    facts, correction = settings.pop("diagnostics"), settings.pop("correction")
    calibration = settings.pop("calibration", None) or {}
    kind, keep, scale = settings["solver"], settings.pop("keep", None), settings["scale"]
    keys = {"stream": ("labels_per_point", "oversampling"), "lanczos": ("precondition",)}[kind]
    settings["solver"] = {"kind": kind, **{key: settings.pop(key) for key in keys}}
    if kind == "lanczos":
        settings["solver"]["keep"] = keep
    names = {"damping": "damping", "prior_precision": "prior_precision", "scale_points": "points"}
    diagonal = {new: settings.pop(old, None) for old, new in names.items()}
    settings["scale"] = None if scale is None else {"kind": scale, **(diagonal if scale == "diagonal" else {})}
    settings.setdefault("ridge", 0.0)
    values, captured = facts["ritz_values"], facts["captured"]
    lanczos = ("steps", "ghosts", "null", "orthogonality", "exhausted", "ritz_values", "residuals", "singular_values")
    state = {
        "correction": correction,
        "eigenvalues": values if keep is None else None,
        "trace": None if captured is None else sum(max(value, 0.0) for value in values) / captured,
        "points": facts["points"],
        "passes": facts["passes"],
        "seconds": facts["seconds"],
        "convergence": None if kind == "stream" else {key: facts[key] for key in lanczos},
        "scale": None if scale is None else "dense",
        "calibration": {
            "why": DROPPED if "readings" in calibration else calibration.get("why", "its file has no calibration"),
            "held_out": calibration.get("held_out", 0.0),
        },
    }
    return {**header, "settings": settings, "state": state}


def versions() -> dict[str, str]:
    """Of everything that numbers in a file may depend on."""
    return {
        "slu": metadata.version("slu"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }
