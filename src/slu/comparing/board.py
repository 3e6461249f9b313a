"""What `compare` returns: results that can be printed, drawn and written to a JSON file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from slu.artifacts.replacing import check_writable, replacing, target
from slu.comparing import board_picture, board_table
from slu.comparing.bootstrap import LEVEL
from slu.comparing.metrics import find_metric
from slu.comparing.results import Results
from slu.errors import StorageError

KIND, FORMAT = "slu board", 1


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
            raw: Whether the raw scores go in as well.

        Raises:
            StorageError: The path cannot be written.
        """
        check_writable(path)
        text = json.dumps(_plain(self, raw), allow_nan=False, indent=1)
        try:
            with replacing(target(path)) as file:
                file.write(text.encode())
        except OSError as reason:
            raise StorageError(f"{path} could not be written: {reason.strerror or reason}") from reason


def _plain(board: Results, raw: bool) -> dict[str, Any]:
    content: dict[str, Any] = {
        "kind": KIND,
        "format": FORMAT,
        "versions": board.versions,
        "level": LEVEL,
        "resamples": board.resamples,
        "seed": board.seed,
        "batch": board.batch,
        "inside": board.inside,
        "outside": board.outside,
        "leaders": board.leaders,
        "notes": board.notes,
        "rows": [asdict(row) for row in board.rows],
    }
    if raw:
        content["scores"] = {
            label: {
                "inside": _plain_scores(scored.inside),
                "outside": {name: _plain_scores(values) for name, values in scored.outside.items()},
            }
            for label, scored in board.scores.items()
        }
    return content


def _plain_scores(values: np.ndarray) -> list[float | str]:
    """Infinities as texts, "inf" and "-inf": JSON has no numbers for them."""
    return [value if math.isfinite(value) else str(value) for value in values.tolist()]
