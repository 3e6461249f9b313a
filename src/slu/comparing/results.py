"""What a comparison gave: rows of methods with their scores, without the ways to show them (`board` has those)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from slu.budgets import Cost
from slu.comparing.bootstrap import Estimate, Judgement, Scored, difference
from slu.comparing.metrics import find_metric
from slu.errors import SettingError, unknown


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
        label: Unique among the rows: the method's name, with the reading where it is not the default
            or not the only one.
        method: The method's name.
        reading: How its score was read; None where there is no score.
        failure: Why the whole row is empty; None where it is not.
        failures: Why, for those outside sets that could not be scored.
        judgements: AUROC, AUPR and FPR95 for every outside set that could.
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
    failure: Failure | None = None
    failures: Mapping[str, Failure] = field(default_factory=dict)
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
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


@dataclass(frozen=True)
class Results:
    """Rows of methods on the same points: iterate over them, or take one by name, `results["SLU"]`.

    Attributes:
        rows: One for each method and reading, in the order they were given.
        inside: Number of inside points.
        outside: Number of points of every outside set, by its name.
        batch: Points of the inside loader's first batch; None where it is not known.
        resamples, seed: Of the intervals.
        leaders: leaders[metric][set] has the labels of the best row and of those that cannot be
            told from it: 0 lies in the 95 % interval of the paired difference.
        notes: What a reader must know besides.
        versions: Of everything that the numbers may depend on.
        scores: The raw scores by label, inside and outside.
    """

    rows: tuple[BoardRow, ...]
    inside: int
    outside: Mapping[str, int]
    batch: int | None
    resamples: int
    seed: int
    leaders: Mapping[str, Mapping[str, tuple[str, ...]]]
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, Scored] = field(default_factory=dict, compare=False, repr=False)

    def __iter__(self) -> Iterator[BoardRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, label: str) -> BoardRow:
        """A row by its label, or by its method's name where that method has one row."""
        rows = [row for row in self.rows if row.label == label] or [row for row in self.rows if row.method == label]
        if len(rows) != 1:
            raise KeyError(f"no row {label!r} on the board; there are {', '.join(row.label for row in self.rows)}")
        return rows[0]

    def difference(self, first: str, second: str, *, outside: str | None = None, metric: str = "auroc") -> Estimate:
        """A metric of the first row minus that of the second, with the 95 % interval of the difference.

        Both rows are resampled alike, so the interval is that of the paired difference: it can exclude 0
        although the rows' own intervals overlap.

        Args:
            first, second: Labels of rows.
            outside: Which outside set; may be left out where there is one.
            metric: "auroc", "aupr" or "fpr95" (for which less is better).

        Raises:
            SettingError: A row has no scores there.
        """
        find_metric(metric)
        if outside is None and len(self.outside) == 1:
            outside = next(iter(self.outside))
        if outside is None or outside not in self.outside:
            raise unknown("outside set", outside, self.outside)
        one, two = (self._scored(self[label], outside) for label in (first, second))
        return difference(one, two, outside, metric=metric, resamples=self.resamples, seed=self.seed)

    def _scored(self, row: BoardRow, outside: str) -> Scored:
        why = row.failure or row.failures.get(outside)
        if why is not None:
            raise SettingError(f"{row.label} has no scores on {outside!r}: {why}")
        return self.scores[row.label]
