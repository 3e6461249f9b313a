"""What the demo may be asked for; apart from the demo so that asking costs no heavy import."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DemoSettings:
    """What the demo may be asked to do otherwise.

    Attributes:
        rank: Directions that are kept.
        sketch_size: Numbers kept of each of them.
        seed: Of the split, the network and SLU.
        epochs: Of training.
    """

    rank: int = 50
    sketch_size: int = 500
    seed: int = 0
    epochs: int = 60
