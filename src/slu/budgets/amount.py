"""Reading a budget: "3p" is copies of the parameters, "2GB" bytes, a whole number floats."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from slu.errors import BudgetError

Budget: TypeAlias = str | int

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_FORM = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-z]+)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Amount:
    """A budget in numbers of the network's own type."""

    floats: int
    text: str


def parse(budget: Budget, parameters: int, bytes_each: int = 4) -> Amount:
    """How many numbers a budget allows for the artefact.

    >>> parse("3p", parameters=44_426).floats, parse("2MB", 44_426).floats, parse(1000, 44_426).floats
    (133278, 500000, 1000)

    Raises:
        BudgetError: It cannot be read, or is not positive.
    """
    form = "a budget is '3p' (copies of the parameters), '2GB' or '512MiB' (bytes), or a whole number of floats"
    if isinstance(budget, bool) or not isinstance(budget, str | int):
        raise BudgetError(f"cannot read the budget {budget!r}; {form}")
    if isinstance(budget, int):
        floats = budget
    else:
        match = _FORM.fullmatch(budget)
        unit = match[2].lower() if match else ""
        if not match or (unit != "p" and unit not in _UNITS):
            raise BudgetError(f"cannot read the budget {budget!r}; {form}")
        number = float(match[1])
        floats = int(number * parameters) if unit == "p" else int(number * _UNITS[unit] / bytes_each)
    if floats < 1:
        raise BudgetError(f"the budget {budget!r} is {floats} numbers, at least one is needed; {form}")
    return Amount(floats, str(budget))
