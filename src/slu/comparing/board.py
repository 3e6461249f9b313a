"""What `compare` found: rows of methods, to be printed, drawn, written down and asked for differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slu.comparing import board_json, board_picture, board_table
from slu.comparing.intervals import Estimate, difference
from slu.comparing.metrics import find_metric
from slu.comparing.resampling import Scored
from slu.comparing.rows import BoardRow
from slu.errors import SettingError, unknown


@dataclass(frozen=True)
class Board:
    """Methods side by side: print it, iterate over its rows, or take one by name, `board["SLU"]`.

    Attributes:
        rows: One for each method and reading, in the order they were given.
        inside: Number of inside points.
        outside: Number of points of every outside set, by its name.
        batch: Points of the inside loader's first batch; None where nobody knows.
        resamples, seed: Of the intervals.
        leaders: leaders[metric][set] has the labels of the best row and of those that cannot be
            told from it: 0 lies in the 95 % interval of the paired difference.
        notes: What a reader must know besides.
        versions: Of everything that the numbers may depend on.
        scores: The raw scores by label, inside and outside; empty on a board that was read from a
            file without them.
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
        found = [row for row in self.rows if row.label == label] or [row for row in self.rows if row.method == label]
        if len(found) != 1:
            raise KeyError(f"no row {label!r} on the board; there are {', '.join(row.label for row in self.rows)}")
        return found[0]

    def __str__(self) -> str:
        return board_table.whole(self)

    def table(self, metric: str = "auroc") -> str:
        """One metric of every row on every outside set, with intervals; "auroc", "aupr" or "fpr95"."""
        find_metric(metric)
        return board_table.of_metric(self, metric)

    def difference(self, first: str, second: str, *, outside: str | None = None, metric: str = "auroc") -> Estimate:
        """A metric of the first row minus that of the second, with the 95 % interval of the difference.

        Both rows meet the same resamples of the same points, so the interval is that of the paired
        difference: it can leave 0 out although the rows' own intervals overlap.

        Args:
            first, second: Labels of rows.
            outside: Which outside set; may be left out where there is one.
            metric: "auroc", "aupr" or "fpr95" (for which less is better).

        Raises:
            SettingError: A row has no scores there, or the board was read from a file without them.
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
        if row.label not in self.scores:
            raise SettingError(
                "this board was read from a file without the raw scores, which a difference needs; write it with "
                "to_json(path, raw=True)"
            )
        return self.scores[row.label]

    def plot(self, path: str | Path, *, metric: str = "auroc") -> None:
        """Draw a metric of every row on every outside set, with intervals, memory and time beside them.

        Args:
            path: Where to, atomically; its ending says what: .png, .svg or .pdf.
            metric: "auroc", "aupr" or "fpr95".

        Raises:
            SettingError: Another ending, or an unknown metric.
            StorageError: The path cannot be written.
        """
        find_metric(metric)
        board_picture.draw(self, path, metric)

    def to_json(self, path: str | Path, *, raw: bool = False) -> None:
        """Write everything to a file, atomically; numbers are finite or null.

        Args:
            path: Where to.
            raw: Whether the raw scores go in as well; differences between rows need them.

        Raises:
            StorageError: The path cannot be written.
        """
        board_json.write(self, path, raw)

    @staticmethod
    def from_json(path: str | Path) -> Board:
        """The board that `to_json` wrote.

        Raises:
            StorageError: No such file, or one that is no board or of a newer format.
        """
        return Board(**board_json.read(path))
