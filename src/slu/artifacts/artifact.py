"""What every fitted score writes and checks: whose weights, which likelihood, how it was called.

A method adds its own settings and tensors; everything that protects a user from scoring with the
wrong network is here.
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
from slu.errors import DamagedFileError, MismatchError, SettingError, StorageError
from slu.gradients import Forward, Network
from slu.likelihoods import Likelihood, describe, resolve, restore
from slu.parameters import difference, fingerprint
from slu.sketches import Sketch, SketchSpec

_PIECE = 1 << 20  # numbers of the probe made at a time


@dataclass(frozen=True)
class Loaded:
    """What a file holds that fits the method and the model.

    Attributes:
        settings: The method's own, as they were saved.
        likelihood: Made again, or the user's own.
        tensors: On the CPU.
        weights: The fingerprint of the network.
    """

    settings: dict[str, Any]
    likelihood: Likelihood
    tensors: dict[str, Tensor]
    weights: dict[str, str]


def save(
    path: str | Path,
    method: str,
    network: Network,
    likelihood: Likelihood,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    weights: Mapping[str, str],
) -> None:
    """Write a fitted score, tied to the exact weights it was fitted on.

    `weights` is their fingerprint, taken at the fit: by now the network may have been trained further.
    """
    header = {
        "method": method,
        "settings": {**settings, "params": list(network.selection.names)},
        "likelihood": describe(likelihood),
        "own_forward": network.has_own_forward,
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
            found = restore(header["likelihood"], given)
        except MismatchError as reason:
            raise MismatchError(f"{path}: {reason}") from None
        return Loaded(dict(header["settings"]), found, tensors, weights)


def _check_network(path: str | Path, header: Mapping[str, Any], model: nn.Module, weights: Mapping[str, str]) -> None:
    differs = difference(header["fingerprint"], weights)
    if differs:
        raise MismatchError(
            f"{path} was fitted on another network: {differs}. Load the weights it was fitted on, or fit anew"
        )
    fitted = header["settings"]["params"]
    chosen = set(fitted)
    found = [name for name, _ in model.named_parameters() if name in chosen]
    # The same weights in another order would be sketched at each other's places.
    if found != fitted:
        first = next(pair for pair in zip_longest(fitted, found) if pair[0] != pair[1])
        raise MismatchError(
            f"{path} was fitted on a network whose parameters stand in another order: {first[0]} came where "
            f"{first[1]} is now. Define its modules in the order they had, or fit anew"
        )


@contextmanager
def sensible(path: str | Path) -> Iterator[None]:
    """A header that lacks something or holds what no version ever wrote, as an error about the file."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, SettingError) as reason:
        why = f"{reason} is missing" if isinstance(reason, KeyError) else reason
        raise DamagedFileError(f"the header of {path} makes no sense: {why}. Fit and save anew") from reason


def probe(sketch: Sketch) -> Tensor:
    """S applied to one fixed vector: shows whether a sketch drawn anew is the one that was fitted with."""
    shown = torch.zeros(sketch.shape[0], dtype=sketch.dtype, device=sketch.device)
    for start in range(0, sketch.shape[1], _PIECE):
        stop = min(start + _PIECE, sketch.shape[1])
        values = torch.arange(start, stop, dtype=torch.float64).cos().to(sketch.device, sketch.dtype)
        sketch.accumulate(start, values, shown)
    return shown


def check_size(path: str | Path, spec: SketchSpec, rank: int, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a sketch of another size than the tensors of its file, before memory is taken for it."""
    found = {name: tuple(tensors[name].shape) for name in ("basis", "probe")}
    if found != {"basis": (rank, spec.size), "probe": (spec.size,)}:
        raise DamagedFileError(
            f"{path} does not fit together: a rank of {rank} and a sketch of size {spec.size} are in its header, "
            f"tensors of the shapes {found} in the file. Fit and save anew"
        )


def check_sketch(path: str | Path, sketch: Sketch, expected: Tensor) -> None:
    """Refuse a sketch whose draws differ from those of the fit, as another version's might."""
    found = probe(sketch).cpu().to(expected.dtype)
    if not float((found - expected).norm()) <= 1e-3 * float(expected.norm()):
        raise MismatchError(
            f"the random numbers of the sketch in {path} cannot be drawn again with torch {torch.__version__}; "
            "use the version named by `slu inspect`, or fit anew"
        )


def versions() -> dict[str, str]:
    """Of everything that numbers in a file may depend on."""
    return {
        "slu": metadata.version("slu"),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }
