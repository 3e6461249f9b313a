"""What `compare` returns: results that can be printed, drawn and written to a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from slu.comparing import board_json, board_picture, board_table
from slu.comparing.metrics import find_metric
from slu.comparing.results import Results


@final
@dataclass(frozen=True)
class Board(Results):
    """Methods side by side: print it, iterate over its rows, or take one by name, `board["SLU"]`.

    Its attributes are those of `Results`.
    """

    def __str__(self) -> str:
        return board_table.whole(self)

    def table(self, metric: str = "auroc") -> str:
        """One metric of every row on every outside set, with intervals; "auroc", "aupr" or "fpr95"."""
        find_metric(metric)
        return board_table.of_metric(self, metric)

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
