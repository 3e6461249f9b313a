"""Numbers that a user gave as settings, checked."""

from __future__ import annotations

from numbers import Real
from operator import index
from typing import Any

from slu.errors import SettingError


def whole(name: str, value: Any, least: int | None = None) -> int:
    """A whole number, numpy's and torch's included, of at least `least`."""
    try:
        number = index(value)
    except TypeError:
        raise SettingError(f"{name} must be a whole number, got {value!r}") from None
    if least is not None and number < least:
        raise SettingError(f"{name} must be at least {least}, got {number}")
    return number


def positive(name: str, value: Any) -> float:
    """A finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < float("inf"):
        raise SettingError(f"{name} must be a finite number above 0, got {value!r}")
    return float(value)


def share(name: str, value: Any) -> float:
    """A number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise SettingError(f"{name} must be a number from 0 to 1, got {value!r}")
    return float(value)
