"""What every method and every fitted score can do: what `compare` asks of them, and what a user's own must have.

A method that has its module as `model`, or a `slu.gradients.Network` as `network`, is shown in copies of
the parameters as well as in bytes. `SLU.fit` takes `calibration` and a `checkpoint` besides; no other method has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from slu.budgets import Cost


@runtime_checkable
class Score(Protocol):
    """A fitted score. There is none that is not fitted."""

    @property
    def readings(self) -> tuple[str, ...]:
        """The names that `reading=` takes; the first is the default."""
        ...

    def __call__(self, data: Any, *, reading: str = ..., progress: bool | None = None) -> Tensor:
        """(b,) scores of one batch or of a loader, in its order; larger means less sure.

        Scores made of gradients are of the model's type, at least float32; those made of predictions float64.
        """
        ...

    def save(self, path: str | Path) -> None:
        """One file, written atomically, tied to the exact weights; the method's `load` reads it."""
        ...


@runtime_checkable
class Method(Protocol):
    """Settings alone, checked when they are given; `fit` makes the score."""

    def fit(self, loader: Any, *, progress: bool | None = None) -> Score:
        """The fitted score; the model comes back as it was."""
        ...

    def cost(self, outputs: int | None = None, batch: int = 1) -> Cost:
        """Bytes kept, and at the peaks of fitting and querying; passes over the data."""
        ...
