"""What `compare` returns: results that can be printed, drawn, written to a JSON file and read from it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from slu.artifacts.replacing import check_writable, replacing, target
from slu.budgets import Cost
from slu.comparing import board_picture, board_table
from slu.comparing.bootstrap import LEVEL, Estimate, Judgement, Scored
from slu.comparing.metrics import find_metric
from slu.comparing.results import BoardRow, Failure, Results
from slu.errors import DamagedFileError, StorageError

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
            raw: Whether the raw scores go in as well; differences between rows need them.

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

    @staticmethod
    def from_json(path: str | Path) -> Board:
        """The board that `to_json` wrote.

        Raises:
            StorageError: No such file, not a board's, or of a newer format.
            DamagedFileError: A board's, but cut or edited.
        """
        try:
            content = json.loads(Path(path).read_bytes())
        except OSError as reason:
            raise StorageError(f"{path} cannot be read: {reason.strerror or reason}") from reason
        except (ValueError, RecursionError) as reason:
            raise DamagedFileError(f"{path} is not a whole JSON file: {reason}. Write the board anew") from reason
        if not isinstance(content, dict) or content.get("kind") != KIND:
            raise StorageError(f"{path} holds no board; name a file that `to_json` wrote")
        if content.get("format") != FORMAT:
            raise StorageError(
                f"{path} has the format {content.get('format')!r}, this version of slu reads {FORMAT}; install a newer "
                "slu"
            )
        try:
            return Board(**_fields(content))
        except (KeyError, TypeError, ValueError, AttributeError) as reason:
            why = f"{reason} is missing" if isinstance(reason, KeyError) else reason
            raise DamagedFileError(f"{path} makes no sense as a board: {why}. Write it anew") from reason


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


def _fields(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: content[name] for name in ("versions", "resamples", "seed", "batch", "inside", "outside")},
        "leaders": {
            metric: {name: tuple(labels) for name, labels in sets.items()}
            for metric, sets in content["leaders"].items()
        },
        "notes": tuple(content["notes"]),
        "rows": tuple(_row(row) for row in content["rows"]),
        "scores": {
            label: Scored(_scores(each["inside"]), {name: _scores(values) for name, values in each["outside"].items()})
            for label, each in content.get("scores", {}).items()
        },
    }


def _row(plain: Mapping[str, Any]) -> BoardRow:
    return BoardRow(
        **{
            **plain,
            "failure": None if plain["failure"] is None else Failure(**plain["failure"]),
            "failures": {name: Failure(**failure) for name, failure in plain["failures"].items()},
            "judgements": {
                name: Judgement(**{metric: Estimate(**values) for metric, values in each.items()})
                for name, each in plain["judgements"].items()
            },
            "cost": None if plain["cost"] is None else Cost(**plain["cost"]),
        }
    )


def _scores(values: list[float | str]) -> np.ndarray:
    return np.array([float(value) for value in values])
