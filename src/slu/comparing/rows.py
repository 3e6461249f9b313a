"""One row of a board, and why it may be empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slu.budgets import Cost
from slu.comparing.intervals import Judgement


@dataclass(frozen=True)
class Failure:
    """Why something is missing: what was being done, the kind of exception, and its message."""

    stage: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind} while {self.stage}: {self.message}"


@dataclass(frozen=True)
class BoardRow:
    """One method, read in one way.

    Attributes:
        label: Unique on its board: the method's name, with the reading where it is not the default
            or not the only one.
        method: The method's name.
        reading: How its score was read; None where there is no score.
        judgements: AUROC, AUPR and FPR95 for every outside set that could be scored.
        failures: Why, for those that could not.
        failure: Why the whole row is empty; None where it is not.
        cost: Bytes by the method's own plan: kept, at the peak of fitting in batches of the train
            loader's size, and at the peak of querying in batches of the inside loader's.
        parameters, bytes_each: p, and the bytes of one number, of the network it belongs to.
        seconds: To fit.
        milliseconds: Scoring one input, at the loaders' batch size, the loaders' own time included.
        settings: Of the method, as far as they are plain data.
    """

    label: str
    method: str
    reading: str | None = None
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    failure: Failure | None = None
    cost: Cost | None = None
    parameters: int | None = None
    bytes_each: int | None = None
    seconds: float | None = None
    milliseconds: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def copies(self, count: int) -> float | None:
        """Bytes in copies of the parameters, the paper's unit; None where no network is known.

        >>> BoardRow("SLU", "SLU", parameters=1000, bytes_each=4).copies(12_000)
        3.0
        """
        if not self.parameters or not self.bytes_each:
            return None
        return count / (self.parameters * self.bytes_each)
