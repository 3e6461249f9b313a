"""Reading a budget: "3p" is copies of the parameters, "2GB" bytes, a whole number floats."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral
from typing import TypeAlias

from slu.errors import BudgetError

Budget: TypeAlias = str | int

UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}

# Digits are few, so that no text can stand for a number that takes long to write out.
_FORM = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(e\+?[0-9]{1,2})?\s*([a-z]+)\s*", re.I | re.A)
_MOST = 2**62

FORM = "a budget is '3p' (copies of the parameters), '2GB' or '512MiB' (bytes), or a whole number of floats"


@dataclass(frozen=True)
class Amount:
    """A budget in numbers of the network's own type, and how it was written.

    Attributes:
        floats: That are there to be shared out.
        text: As it was written.
        reserved: What was taken off before, for a scale.
    """

    floats: int
    text: str
    reserved: int = 0

    @property
    def held(self) -> str:
        """The numbers, for a message."""
        return f"{self.floats:,} numbers" + (f" beside the scale's {self.reserved:,}" if self.reserved else "")


def parse(budget: Budget, parameters: int, bytes_each: int = 4) -> Amount:
    """How many numbers a budget allows for the artefact; parts of a number are dropped.

    Args:
        budget: Copies of the parameters ("3p", "0.5p"), bytes ("2GB", "1.5 MiB", any case), or a
            whole number of floats.
        parameters: p.
        bytes_each: Bytes of one number: 4 in float32, 8 in float64.

    >>> parse("3p", parameters=44_426).floats, parse("2MB", 44_426).floats, parse(1000, 44_426).floats
    (133278, 500000, 1000)
    >>> parse("2 GB", 44_426, bytes_each=8).floats
    250000000

    Raises:
        BudgetError: It cannot be read, is not positive, or is beyond any memory.
    """
    if isinstance(budget, str):
        floats = _read(budget, parameters, bytes_each)
    elif isinstance(budget, Integral) and not isinstance(budget, bool):
        floats = int(budget)
    else:
        raise BudgetError(f"cannot read the budget {budget!r}, a {type(budget).__name__}; {FORM}")
    if floats > _MOST:
        # Not written out: a whole number may have more digits than Python turns into text.
        raise BudgetError(f"the budget is above {_MOST:,} numbers, beyond any memory; {FORM}")
    if floats < 1:
        raise BudgetError(f"the budget {budget!r} is {floats} numbers, at least one is needed; {FORM}")
    return Amount(floats, str(budget).strip())


def _read(text: str, parameters: int, bytes_each: int) -> int:
    match = _FORM.fullmatch(text)
    unit = match[3].lower() if match else ""
    if not match or (unit != "p" and unit not in UNITS):
        raise BudgetError(f"cannot read the budget {text[:40]!r}; {FORM}")
    number = Decimal(match[1] + (match[2] or ""))
    return int(number * parameters) if unit == "p" else int(number * UNITS[unit] / bytes_each)


def shown(count: float) -> str:
    """Bytes for people, in decimal units and three digits.

    >>> shown(999), shown(533_112), shown(81_000_000), shown(2_500_000_000)
    ('999 B', '533 kB', '81 MB', '2.5 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if float(f"{count:.3g}") < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB" if count < 1000 else f"{count:,.0f} TB"
