"""No sketch at all: for small networks, and as the oracle of every other kind."""

from __future__ import annotations

from typing import final

from torch import Tensor

from slu.errors import SettingError
from slu.sketches.base import Sketch, SketchSpec


@final
class Identity(Sketch):
    """S = I: everything that is computed with it is exact.

    Cost: no state; one addition per number.
    Numerics: none lost. The correction is 1 for every rank up to p.
    """

    @classmethod
    def checked(cls, spec: SketchSpec) -> SketchSpec:
        """Only with s = p."""
        if spec.size != spec.parameters:
            raise SettingError(
                f"the identity keeps all {spec.parameters} numbers, got a size of {spec.size}; "
                "leave the sketch size out, or choose another sketch"
            )
        return super().checked(spec)

    @classmethod
    def state_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:  # noqa: ARG003
        """Nothing."""
        return 0

    @classmethod
    def scratch_bytes_of(cls, spec: SketchSpec, bytes_each: int = 4) -> int:  # noqa: ARG003
        """Nothing."""
        return 0

    def correction(self, rank: int) -> float:
        """1: an isometry needs none."""
        if not 0 <= rank <= self.spec.parameters:
            raise SettingError(
                f"rank {rank} is not within 0 and the {self.spec.parameters} parameters; take a smaller rank"
            )
        return 1.0

    def _add(self, start: int, values: Tensor, into: Tensor) -> None:
        into[:, start : start + values.shape[1]] += values

    def _rows(self, start: int, stop: int, vector: Tensor) -> Tensor:
        return vector[:, start:stop]
