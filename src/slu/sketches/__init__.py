"""Sketches: random linear maps S (s, p) that shorten vectors and keep their lengths on average.

The default, "kronecker", takes gradients of matrices as factors, and nothing it holds is of length p; it needs the
shapes of the tensors. "block_srft" is the cheapest other kind that is accurate on vectors with few nonzeros as well;
`benchmarks/sketches.py` has the measurements. "shift" holds little state; "hashed" is a little faster on many rows,
where gradients are known to be spread out.
"""

from __future__ import annotations

import torch

from slu.errors import unknown
from slu.sketches.base import Adjoint, Sketch, SketchSpec
from slu.sketches.dense import Gaussian, Rademacher
from slu.sketches.hashed import Hashed
from slu.sketches.identity import Identity
from slu.sketches.kronecker import Kronecker
from slu.sketches.shift import Shift
from slu.sketches.srft import BlockSrft, Srft

SKETCHES: dict[str, type[Sketch]] = {
    "block_srft": BlockSrft,
    "kronecker": Kronecker,
    "srft": Srft,
    "hashed": Hashed,
    "shift": Shift,
    "gaussian": Gaussian,
    "rademacher": Rademacher,
    "identity": Identity,
}
"""Every kind by name; a new sketch is one file and one row here."""

DEFAULT_SKETCH = "kronecker"

__all__ = ["DEFAULT_SKETCH", "SKETCHES", "Adjoint", "Sketch", "SketchSpec", "build", "checked"]


def checked(spec: SketchSpec) -> SketchSpec:
    """The spec with its kind's defaults, or a SettingError that says why it cannot be built."""
    if spec.kind not in SKETCHES:
        raise unknown("sketch", spec.kind, SKETCHES)
    return SKETCHES[spec.kind].checked(spec)


def build(spec: SketchSpec, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Sketch:
    """The sketch that a spec describes; the same numbers on every device.

    >>> build(SketchSpec("hashed", parameters=1000, size=50)).shape
    (50, 1000)
    """
    return SKETCHES[checked(spec).kind](spec, torch.device(device), dtype)
