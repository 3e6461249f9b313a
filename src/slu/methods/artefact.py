"""What every fitted score writes and checks: whose weights, which likelihood, how it was called.

A method adds its own settings and tensors; everything that protects a user from scoring with the
wrong network is here.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor, nn

from slu.curvature import Forward, Network
from slu.curvature.network import call
from slu.errors import MismatchError, StorageError
from slu.likelihoods import Likelihood, describe, restore
from slu.parameters import difference, fingerprint
from slu.sketches import Sketch
from slu.storage import read, write

_PIECE = 1 << 20  # numbers of the probe made at a time


def save(
    path: str | Path,
    method: str,
    network: Network,
    likelihood: Likelihood,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> None:
    """Write a fitted score, tied to the exact weights of its network."""
    header = {
        "method": method,
        "settings": {**settings, "params": list(network.selection.names)},
        "likelihood": describe(likelihood),
        "own_forward": network.forward is not call,
        "fingerprint": fingerprint(network.model),
        "versions": versions(),
    }
    write(path, tensors, header)


def load(
    path: str | Path,
    method: str,
    model: nn.Module,
    *,
    likelihood: Likelihood | None,
    forward: Forward | None,
) -> tuple[dict[str, Any], Likelihood, dict[str, Tensor]]:
    """Settings, likelihood and tensors of a file that fits this method and this model.

    Raises:
        MismatchError: Another method's file, another model, changed weights, or a likelihood or
            forward of the user's own that was not given.
    """
    header, tensors = read(path)
    if header.get("method") != method:
        raise StorageError(f"{path} holds {header.get('method') or 'no'} score; load it with that method, not {method}")
    differs = difference(header["fingerprint"], fingerprint(model))
    if differs:
        raise MismatchError(
            f"{path} was fitted on another network: {differs}. Load the weights it was fitted on, or fit anew"
        )
    if header["own_forward"] and forward is None:
        raise MismatchError(f"{path} was fitted with a forward= of its own; pass the same function as forward=")
    if forward is not None and not header["own_forward"]:
        raise MismatchError(f"{path} was fitted without a forward=; leave it out")
    try:
        found = restore(header["likelihood"], likelihood)
    except MismatchError as reason:
        raise MismatchError(f"{path}: {reason}") from None
    return header["settings"], found, tensors


def probe(sketch: Sketch) -> Tensor:
    """S applied to one fixed vector: shows whether a sketch drawn anew is the one that was fitted with."""
    shown = torch.zeros(sketch.shape[0], dtype=sketch.dtype, device=sketch.device)
    for start in range(0, sketch.shape[1], _PIECE):
        stop = min(start + _PIECE, sketch.shape[1])
        values = torch.arange(start, stop, dtype=torch.float64).cos().to(sketch.device, sketch.dtype)
        sketch.accumulate(start, values, shown)
    return shown


def check_sketch(path: str | Path, sketch: Sketch, expected: Tensor) -> None:
    """Refuse a sketch whose draws differ from those of the fit, as another version's might."""
    found = probe(sketch).cpu().to(expected.dtype)
    if found.shape != expected.shape or float((found - expected).norm()) > 1e-3 * float(expected.norm()):
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
