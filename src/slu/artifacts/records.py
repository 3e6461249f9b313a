"""What a checkpoint says of its fit and of the data, checked where it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from slu.artifacts import stored
from slu.artifacts.files import digest
from slu.data import Content, Fingerprint


def check_unedited(header: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse a checkpoint whose fields are not those that were written beside each other."""
    stored.check_inventory(header, tensors)
    stored.text(header, "stage", ("running", "calibrating", "finished"))
    # No number computed again could tell another sum of gradients from the one that was written.
    if "step" in header and header["step"] != step_digest(header):
        raise stored.wrong("step", header["step"], "the digest of the fields beside it")


def stored_content(read: Mapping[str, Any], name: str) -> Content:
    """What an earlier run had read of the data, or of given points."""
    seen = stored.table(read, name)
    points, key = stored.whole(seen, "points"), stored.whole(seen, "key")  # of the part of a process also none
    lengths = None if seen.get("lengths") is None else stored.whole(seen, "lengths")
    return Content(points, key, stored.whole(seen, "padded_before", most=3), lengths)


def stored_fingerprint(header: Mapping[str, Any]) -> Fingerprint:
    """What a running fit has seen of the data."""
    seen = stored.table(header, "data")
    return Fingerprint(
        points=stored.whole(seen, "points", least=1),
        content=stored.whole(seen, "content"),
        outputs=stored.number(seen, "outputs"),
        magnitude=stored.number(seen, "magnitude", least=0.0),
    )


def step_digest(header: Mapping[str, Any]) -> str:
    """Of the fields of a running fit that its solver wrote."""
    fields = {key: header[key] for key in header if key not in ("format", "tensors", "step", "identity")}
    return digest({}, json.dumps(fields, sort_keys=True))
