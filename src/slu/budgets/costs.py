"""What a method holds while it fits and while it answers, in numbers and bytes.

Letters: p parameters, k rank, s sketch size, t outputs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """The dimensions of a problem that costs depend on."""

    parameters: int
    outputs: int = 10
    bytes_each: int = 4


@dataclass(frozen=True)
class Cost:
    """Floats beyond the model and one batch's activations, and passes over the data.

    Attributes:
        artefact: Kept for queries and written to disk.
        fitting: The peak while fitting, the artefact included.
        querying: The peak while scoring one input at a time, the artefact included.
        passes: Over the data.
    """

    artefact: int
    fitting: int
    querying: int
    passes: int
