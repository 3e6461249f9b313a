"""Methods of the tests' own for `compare`: they have the face of every method and nothing behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slu.budgets import Cost
from slu.data import batches

COST = Cost(artefact=1200, fitting=4000, querying=1600, passes=1)


class Formula:
    """Scores that are a formula of the inputs (b, ...), one for each reading; the first is the default.

    `cost` may be a function of the batch size.
    """

    def __init__(self, *formulas: Callable[[Tensor], Any], cost: Any = COST, level: int = 0, **named: Any) -> None:
        self._formulas = {f"formula-{place}": formula for place, formula in enumerate(formulas)} | named
        self._cost = cost
        self.level = level
        self.fits = 0

    def fit(self, loader: Any, *, progress: bool | None = None) -> FormulaScore:
        for _ in batches(loader, torch.device("cpu")):
            pass
        self.fits += 1
        return FormulaScore(self._formulas)

    def cost(self, outputs: int | None = None, batch: int = 1) -> Cost:
        return self._cost(batch) if callable(self._cost) else self._cost


class FormulaScore:
    """Made by `Formula.fit`."""

    def __init__(self, formulas: Mapping[str, Callable[[Tensor], Any]]) -> None:
        self._formulas = formulas

    @property
    def readings(self) -> tuple[str, ...]:
        return tuple(self._formulas)

    def __call__(self, data: Any, *, reading: str = "formula-0", progress: bool | None = None) -> Tensor:
        formula = self._formulas[reading]
        return torch.cat([formula(batch.inputs) for batch in batches(data, torch.device("cpu"))])

    def save(self, path: str | Path) -> None:
        raise NotImplementedError


class Failing:
    """Raises an exception when it is fitted."""

    def __init__(self, error: BaseException, model: nn.Module | None = None) -> None:
        self._error = error
        self.model = model

    def fit(self, loader: Any, *, progress: bool | None = None) -> FormulaScore:
        raise self._error

    def cost(self, outputs: int | None = None, batch: int = 1) -> Cost:
        return COST
