"""UCI regression tables with the splits that everybody compares on.

Below `UCI_Datasets/NAME/data`: `data.txt`, the columns that are features and target, and for each
split the rows to train and to test on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from slu.errors import SettingError
from slu_experiments.data.places import damaged, present
from slu_experiments.data.source import Memory

TABLES = {
    "uci-boston": "bostonHousing",
    "uci-concrete": "concrete",
    "uci-energy": "energy",
    "uci-kin8nm": "kin8nm",
    "uci-naval": "naval-propulsion-plant",
    "uci-power": "power-plant",
    "uci-protein": "protein-tertiary-structure",
    "uci-wine": "wine-quality-red",
    "uci-yacht": "yacht",
}
"""The sets and their folders."""


def open_uci(folder: Path, part: str, name: str, split: int = 0) -> Memory:
    """One part of one split: features (b, d) and target (b, 1), as they are in the table.

    Cost: the table in float32.

    Raises:
        SettingError: There is no such split.
        MissingDataError: A file is not there.
        DataError: A file is no table of finite numbers, or a split names rows that are not there.
    """
    count = splits(folder, name)
    if not 0 <= split < count:
        raise SettingError(f"{name} has the splits 0 to {count - 1}; got {split}")
    table_path = folder / "data" / "data.txt"
    table = _numbers(table_path, name)
    if not np.isfinite(table).all() or table.ndim != 2:
        raise damaged(table_path, "is no table of finite numbers", name)
    features = _indices(folder, "index_features.txt", table.shape[1], name)
    target = _indices(folder, "index_target.txt", table.shape[1], name)
    rows = _indices(folder, f"index_{part}_{split}.txt", len(table), name)
    chosen = torch.from_numpy(table[rows].astype(np.float32))
    return Memory(chosen[:, features], chosen[:, target])


def splits(folder: Path, name: str) -> int:
    """How many splits a table has: 20, or 5 for protein."""
    path = folder / "data" / "n_splits.txt"
    numbers = _numbers(path, name)
    if numbers.size != 1 or numbers.flat[0] < 1 or numbers.flat[0] % 1:
        raise damaged(path, "does not hold one whole number, the number of splits", name)
    return int(numbers.flat[0])


def _indices(folder: Path, file: str, limit: int, name: str) -> np.ndarray:
    path = folder / "data" / file
    numbers = _numbers(path, name).reshape(-1)
    whole = numbers.astype(np.int64)
    if not len(numbers) or (whole != numbers).any() or whole.min() < 0 or whole.max() >= limit:
        raise damaged(path, f"does not hold whole numbers from 0 to {limit - 1}", name)
    if len(np.unique(whole)) != len(whole):
        raise damaged(path, "names something twice", name)
    return whole


def _numbers(path: Path, name: str) -> np.ndarray:
    text = present(path, name).read_text(encoding="utf-8", errors="replace")
    if not text.strip():
        raise damaged(path, "is empty", name)
    try:
        return np.loadtxt(text.splitlines(), ndmin=2)
    except ValueError as reason:
        raise damaged(path, f"is no table of numbers ({reason})", name) from reason
