"""What a network takes that is too large to be judged here: measurements, one file per way of fitting it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slu.errors import DamagedFileError
from slu_experiments.publishing.advice import markdown
from slu_experiments.settings import Setting


@dataclass(frozen=True)
class Measurement:
    """One file, as `python -m benchmarks.billion --json` writes it.

    Attributes:
        title: Of its column.
        command: That made it.
        made: Day, machine and versions.
        measured: What came out, in order: numbers or texts by name.
    """

    title: str
    command: str
    made: dict[str, str]
    measured: dict[str, Any]


def read_costs(folder: Path, setting: Setting) -> list[Measurement]:
    """The measurements of a setting's network, cost-SETTING-….json, by names of files.

    Raises:
        DamagedFileError: One is no such file.
    """
    costs = []
    for path in sorted(folder.glob(f"cost-{setting.name}-*.json")):
        try:
            costs.append(Measurement(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError) as reason:
            raise DamagedFileError(
                f"{path} is no file of measurements ({reason!r}); write it again with python -m benchmarks.billion"
            ) from reason
    return costs


def cost_table(costs: Sequence[Measurement]) -> list[str]:
    """A column per measurement, and below the commands."""
    names = dict.fromkeys(name for each in costs for name in each.measured)
    rows = [["", *(each.title for each in costs)]]
    rows += [[name, *(_shown(each.measured.get(name, "–")) for each in costs)] for name in names]
    made = [f"{each.title}: `{each.command}`; {'; '.join(each.made.values())}." for each in costs]
    return [*markdown(rows), "", *made]


def _shown(value: Any) -> str:
    """A number in three digits.

    >>> _shown(1.23456), _shown(196517106), _shown([30, 1000]), _shown("2.1 GB")
    ('1.23', '196,517,106', '30, 1,000', '2.1 GB')
    """
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
