"""What a file of slu holds, told without a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from slu.artifacts import stored
from slu.artifacts.artifact import check_likelihood, check_weights, checked, sensible
from slu.artifacts.checkpoint import VERSION
from slu.artifacts.files import read_sized
from slu.artifacts.records import check_unedited
from slu.core.state import FittedState
from slu.parameters import summary

_OWN = ("format", "kind", "versions")


def contents(path: str | Path) -> dict[str, Any]:
    """Everything in a file but the numbers of its tensors, as plain data.

    The file is checked as a load would, as far as that takes no model.

    Returns:
        Always `file`, `bytes`, `format`, `kind` ("score", "checkpoint", "weights" or "other"), and `tensors` with
        their shapes and types. Of a score and of a checkpoint also `method`, `settings`, `likelihood`,
        `own_forward`, `weights` (the fingerprint in short) and `state`, which a running fit does
        not have yet and which only SLU has; of a score `spectrum` (of eigenvectors kept in full)
        and `versions`, of a checkpoint `stage`, `points` (those seen so far, of the stream) and `steps`
        (those of Lanczos, else None). Of the weights of a trained network `training`: what its header says.

    Raises:
        StorageError: No such file, not one of ours, or of another format.
        DamagedFileError: Cut, flipped or edited.

    Cost: a read of the file; the checksum takes about a second for 10⁹ bytes.
    """
    path = Path(path)
    header, tensors, size = read_sized(path)
    facts: dict[str, Any] = {
        "file": str(path),
        "bytes": size,
        "format": header["format"],
        "kind": "other",
        "tensors": {
            name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
            for name, tensor in sorted(tensors.items())
        },
    }
    with sensible(path):
        if header.get("kind") == "weights":
            facts |= {"kind": "weights", "training": _training(header)}
        elif "method" in header:
            facts |= _score(checked(header, tensors), tensors)
        elif "stage" in header:
            check_unedited(header, tensors)
            facts |= _checkpoint(header, tensors)
    return facts


def _training(header: Mapping[str, Any]) -> dict[str, Any]:
    """What the header of weights says, where all that is shown of it can be what it is."""
    _ = [stored.text(header, name) for name in ("model", "dataset", "setting")]
    _ = stored.integer(header, "seed"), stored.whole(header, "parameters"), stored.whole(header, "points")
    if stored.field(header, "accuracy") is not None:  # of a regression there is none
        stored.number(header, "accuracy", 0.0, 1.0)
    _ = stored.number(header, "loss"), stored.table(header, "recipe")
    return {key: header[key] for key in header if key not in _OWN}


def _score(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    settings = dict(header["settings"])
    if header["method"] == "SLU":
        _check_state(header["state"], tensors)
    return {
        "kind": "score",
        "method": header["method"],
        "spectrum": settings.pop("spectrum", {}),
        "state": header["state"],
        "settings": settings,
        "likelihood": header["likelihood"],
        "own_forward": header["own_forward"],
        "weights": summary(header["fingerprint"]),
        "versions": header["versions"],
    }


def _check_state(state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    probe = stored.tensor(tensors, "probe", (None,))
    FittedState.unscaled(tensors, state, len(probe), probe.device, probe.dtype)


def _checkpoint(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    identity = dict(stored.table(header, "identity"))
    if "weights" in identity:
        check_weights(identity, "weights")
    check_likelihood(identity)
    weights = identity.pop("weights", {})
    state = stored.table(header, "state") if "state" in header else {}
    if state and header.get("version") == VERSION:  # what others hold a fit does not read either
        _check_state(state, tensors)
    solver = identity.get("solver")
    stream = isinstance(solver, Mapping) and solver["kind"] == "stream"
    return {
        "kind": "checkpoint",
        "stage": header["stage"],
        "method": identity.pop("method", None),
        "points": stored.whole({"points": state.get("points", header.get("data", {}).get("points", 0))}, "points"),
        "steps": None if stream else (state.get("convergence") or {}).get("steps", len(header.get("alphas", []))),
        "state": state,
        "settings": {key: identity[key] for key in identity if key not in ("likelihood", "own_forward", "forward")},
        "likelihood": identity["likelihood"],
        "own_forward": identity.get("own_forward", False),
        "weights": summary(weights),
    }
