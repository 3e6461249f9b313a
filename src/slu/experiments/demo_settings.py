"""What the demo may be asked for; apart from the demo so that asking costs no heavy import."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DemoSettings:
    """What the demo may be asked to do otherwise.

    Attributes:
        rank: Directions that are kept; None leaves them to SLU.
        sketch_size: Numbers kept of each of them; None leaves them to SLU.
        seed: Of the split, the network and SLU.
        epochs: Of training.
    """

    rank: int | None = None
    sketch_size: int | None = None
    seed: int = 0
    epochs: int = 60
