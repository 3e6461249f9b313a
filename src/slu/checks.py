"""Numbers and names that a user gave as settings, checked."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from numbers import Real
from operator import index
from typing import Any, cast

from slu.errors import SettingError, unknown


def whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """A whole number, numpy's and torch's included, of at least `least` and at most `most`."""
    try:
        number = index(value)
    except TypeError:
        raise SettingError(f"{name} must be a whole number, got {value!r}") from None
    if least is not None and number < least:
        raise SettingError(f"{name} must be at least {least}, got {number}")
    if most is not None and number > most:
        raise SettingError(f"{name} must be at most {most}, got {number}")
    return number


def positive(name: str, value: Any) -> float:
    """A finite number above 0."""
    if not (_is_float(value) and float(value) > 0):
        raise SettingError(f"{name} must be a finite number above 0, got {value!r}")
    return float(value)


def share(name: str, value: Any) -> float:
    """A number from 0 to 1."""
    if not (_is_float(value) and 0 <= float(value) <= 1):
        raise SettingError(f"{name} must be a number from 0 to 1, got {value!r}")
    return float(value)


def _is_float(value: Any) -> bool:
    """Whether it is a finite number; a whole number may be larger than any float."""
    return isinstance(value, Real) and not isinstance(value, bool) and abs(cast(float, value)) <= sys.float_info.max


def one_of(what: str, came: str, valid: Iterable[str]) -> str:
    """A name of a table; SettingError with all names if it is none."""
    if came not in valid:
        raise unknown(what, came, valid)
    return came
