"""Do two passes over the data see the same data?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slu.errors import ChangedDataError

# Batches of another size round differently; what a random layer changes is far larger.
_ROUNDING = 1e-3


@dataclass
class Fingerprint:
    """Counts and sums over one pass that do not depend on the order or the batches.

    Attributes:
        points: n.
        content: The sum of all sample keys modulo 2⁶⁴: exact, so one changed pixel shows.
        outputs: Σ f(x) over points and outputs, in float64.
        magnitude: Σ |f(x)|, the scale on which two sums of outputs are compared.
    """

    points: int = 0
    content: int = 0
    outputs: float = 0.0
    magnitude: float = 0.0

    def add(self, keys: Tensor, outputs: Tensor) -> None:
        self.points += len(outputs)
        self.content = (self.content + int(keys.sum())) % (1 << 64)
        detached = outputs.detach().to(torch.float64)
        self.outputs += float(detached.sum())
        self.magnitude += float(detached.abs().sum())

    def check_same(self, earlier: Fingerprint) -> None:
        """Raises ChangedDataError if this pass saw something else than an earlier one."""
        cure = (
            "Every pass must see the same points, in any order: fit with a loader that has no augmentation, "
            "no random sampling with replacement and drop_last=False"
        )
        if self.points != earlier.points:
            raise ChangedDataError(
                f"the first pass over the data saw {earlier.points} points, a later one {self.points}. {cure}"
            )
        if self.content != earlier.content:
            raise ChangedDataError(
                f"the {self.points} points of a later pass differ in content from those of the first one. {cure}"
            )
        if abs(self.outputs - earlier.outputs) > _ROUNDING * max(self.magnitude, earlier.magnitude):
            raise ChangedDataError(
                "the model gives different outputs for the same data in two passes, in eval mode: "
                f"their sum went from {earlier.outputs:.6g} to {self.outputs:.6g}. "
                "Look for dropout or noise that ignores eval mode, or weights that are being trained meanwhile"
            )
