"""Sketches: random linear maps S (s, p) that shorten vectors and keep their lengths on average.

The default is "block_srft", chosen by `python -m benchmarks sketches` (p = 44,426, rank 100, four
draws: rms error of the relative score and smallest singular value of S U; time at s = 1000 in copies
of what is sketched, for one vector of 270,000 and of 20,000,000 numbers and for 320 rows of 44,426):

| sketch | spread, s = 1000 / 4000 | sparse, s = 1000 / 4000 | smallest, sparse | copies |
|---|---|---|---|---|
| block_srft | 0.022 / 0.009 | 0.014 / 0.007 | 0.70 / 0.84 | 63, 19, 11 |
| srft | 0.021 / 0.009 | 0.016 / 0.006 | 0.70 / 0.85 | -, -, 27 |
| hashed | 0.019 / 0.009 | 0.143 / 0.095 | 0 / 0 | 39, 18, 9 |
| hashed, 4 nonzeros | 0.021 / 0.011 | 0.037 / 0.017 | 0.60 / 0.76 | 145, 46, 30 |
| shift | 0.020 / 0.009 | 0.137 / 0.047 | 0 / 0 | 35, 11, 14 |
| gaussian | 0.020 / - | 0.018 / - | 0.68 / - | |

On spread-out vectors all agree within the noise of four draws. Only the transforms (and the dense
matrices) are accurate on vectors with few nonzeros, and of these the blocks are the cheapest.
"shift" holds the least state; "hashed" is a little faster on many rows, where gradients are known to be
spread out. A copy of 270,000 numbers stays in the cache and takes as long as two or three calls of torch: the
FFT alone is 16 to 18 copies there (11 of 20,000,000), unpacking the signs 4 (8), and a hash is ten such calls.
"""

from __future__ import annotations

import torch

from slu.errors import unknown
from slu.sketches.base import Adjoint, Sketch, SketchSpec
from slu.sketches.dense import Gaussian, Rademacher
from slu.sketches.hashed import Hashed
from slu.sketches.identity import Identity
from slu.sketches.shift import Shift
from slu.sketches.srft import BlockSrft, Srft

SKETCHES: dict[str, type[Sketch]] = {
    "block_srft": BlockSrft,
    "srft": Srft,
    "hashed": Hashed,
    "shift": Shift,
    "gaussian": Gaussian,
    "rademacher": Rademacher,
    "identity": Identity,
}
"""Every kind by name; a new sketch is one file and one row here."""

DEFAULT_SKETCH = "block_srft"

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
