"""Values of a file, checked before anything is computed from them: a checksum tells damage, but not an edited value.

Every function raises a DamagedFileError that names the field, what came and what was expected.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from slu.errors import DamagedFileError, NumericalError

_LARGEST = (1 << 64) - 1  # of whole numbers
_WIDE = 1 << 12  # numbers in a row of the weighted sum
_ROWS = 1 << 8  # rows taken to float64 at a time
_ROUNDING = 1e-9  # of a weighted sum, in another order of addition, relative to the length of what is added up
_HUGE = 1e150  # so that squares do not overflow
_OWN = "/"  # in the names of tensors of a user's own networks, which may hold infinity, as masks do


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200

short = _SHORT.repr
"""A value as messages show it: long ones are cut."""


def wrong(name: str, came: Any, expected: str) -> DamagedFileError:
    """The error for a value that `save` does not write."""
    return DamagedFileError(f"{name} is {short(came)}, expected {expected}. Fit and save anew")


def field(plain: Mapping[Any, Any], name: Any) -> Any:
    """A value that must be there."""
    if name not in plain:
        raise DamagedFileError(f"{name} is missing. Fit and save anew")
    return plain[name]


def table(plain: Mapping[Any, Any], name: Any) -> dict[str, Any]:
    """A dict by names."""
    value = field(plain, name)
    if not isinstance(value, dict):
        raise wrong(name, value, "a dict")
    return value


def items(plain: Mapping[Any, Any], name: Any, length: int | None = None) -> list[Any]:
    """A list, of a length where that is known."""
    value = field(plain, name)
    if not isinstance(value, list) or length not in (None, len(value)):
        raise wrong(name, value, "a list" if length is None else f"a list of {length}")
    return value


def rows(plain: Mapping[Any, Any], name: Any, length: int | None = None) -> dict[int, Any]:
    """A list by place, so that its entries can be checked as fields are."""
    return dict(enumerate(items(plain, name, length)))


def text(plain: Mapping[Any, Any], name: Any, valid: Collection[str] | None = None) -> str:
    """A text, one of those that are valid."""
    value = field(plain, name)
    if not isinstance(value, str) or (valid is not None and value not in valid):
        raise wrong(name, value, "a text" if valid is None else f"one of {', '.join(map(repr, valid))}")
    return value


def texts(plain: Mapping[Any, Any], name: Any) -> list[str]:
    """A list of texts, each there once."""
    value = items(plain, name)
    if not all(isinstance(each, str) for each in value) or len(set(value)) < len(value):
        raise wrong(name, value, "a list of texts, each there once")
    return value


def truth(plain: Mapping[Any, Any], name: Any) -> bool:
    """True or False."""
    value = field(plain, name)
    if not isinstance(value, bool):
        raise wrong(name, value, "true or false")
    return value


def whole(plain: Mapping[Any, Any], name: Any, least: int = 0, most: int = _LARGEST) -> int:
    """A whole number within bounds."""
    value = field(plain, name)
    if type(value) is not int or not least <= value <= most:
        raise wrong(name, value, f"a whole number from {least}" + ("" if most == _LARGEST else f" to {most}"))
    return value


def integer(plain: Mapping[Any, Any], name: Any) -> int:
    """A whole number of any size and sign, as a seed is."""
    value = field(plain, name)
    if type(value) is not int:
        raise wrong(name, value, "a whole number")
    return value


def number(
    plain: Mapping[Any, Any], name: Any, least: float = -math.inf, most: float = math.inf, *, above: float = -math.inf
) -> float:
    """A finite number within bounds, and above one of them."""
    value = field(plain, name)
    if not _is_number(value) or not least <= value <= most or not value > above:
        bounds = {"from": least, "above": above, "to": most}
        known = [f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound)]
        raise wrong(name, value, " ".join(["a finite number", *known]))
    return float(value)


def numbers(
    plain: Mapping[Any, Any], name: Any, length: int | None = None, *, least: int = 0, unknown: bool = False
) -> list[float]:
    """A list of so many finite numbers, or of at least so many; where they may be unknown, None stands for NaN."""
    value = items(plain, name, length)
    if len(value) < least or not all(_is_number(each) or (unknown and each is None) for each in value):
        count = f"{length} " if length is not None else f"at least {least} " if least else ""
        raise wrong(name, value, f"a list of {count}finite numbers")
    return [math.nan if each is None else float(each) for each in value]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= torch.finfo(torch.float64).max


def tensor(
    tensors: Mapping[str, Tensor], name: str, shape: Sequence[int | None], dtype: torch.dtype | None = None, *,
    least: float | None = None, above: float | None = None, finite: bool = True,
) -> Tensor:  # fmt: skip
    """A tensor of finite numbers of a shape, None where a size is free but not 0, of a type, or floating.

    Numbers must be at least `least`, or above `above`, where these are given. Those of a user's own need not be finite.
    """
    value = field(tensors, name)
    fits = len(shape) == value.dim() and all(
        came > 0 if size is None else came == size for came, size in zip(value.shape, shape, strict=False)
    )
    if not fits or (value.dtype != dtype if dtype is not None else not value.is_floating_point()):
        kind = "floating" if dtype is None else str(dtype).removeprefix("torch.")
        came = f"of the shape {tuple(value.shape)} and {value.dtype}".replace("torch.", "")
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise DamagedFileError(f"{name} is {came}, expected ({sizes}) and {kind}. Fit and save anew")
    if not finite:
        return value
    good, words = value.isfinite(), "finite"
    if least is not None or above is not None:
        good &= value >= least if above is None else value > above
        words += f" and at least {least:g}" if above is None else f" and above {above:g}"
    if not bool(good.all()):
        raise DamagedFileError(
            f"{name} holds {int((~good).sum())} numbers that are not {words}, of {value.numel()}. Fit and save anew"
        )
    return value


def check_orthonormal(rows: Tensor, name: str) -> None:
    """Refuse rows that are not orthonormal within the rounding of their type."""
    parts = rows.split(max(1, _WIDE * _ROWS // len(rows)), 1)
    apart_by = -torch.eye(len(rows), dtype=torch.float64, device=rows.device)
    for part in parts:
        apart_by += part.double() @ part.double().T
    apart = float(apart_by.abs().max())
    if not apart <= torch.finfo(rows.dtype).eps ** 0.5:
        raise DamagedFileError(
            f"the rows of {name} are not orthonormal: their products differ from those by {apart:.2g}. Fit and save "
            "anew"
        )


def check_fitted(tensors: Mapping[str, Tensor]) -> None:
    """Refuse to write what a fit must not come to; tensors of a user's own network may be anything.

    Raises:
        NumericalError: Numbers that are not finite.
    """
    for name in _fitted(tensors):
        if not bool(tensors[name].isfinite().all()):
            raise NumericalError(
                f"{name} of this score holds numbers that are not finite, so the fit itself went wrong, or they were "
                "changed since; nothing was written. Fit anew, and look for extreme inputs if it happens again"
            )


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Refuse to read what `check_fitted` refuses to write."""
    for name in _fitted(tensors):
        tensor(tensors, name, tensors[name].shape)


def _fitted(tensors: Mapping[str, Tensor]) -> list[str]:
    """Those that a fit came to."""
    return [name for name, value in tensors.items() if _OWN not in name and value.is_floating_point()]


def inventory(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Shape, type and a weighted sum of every tensor, which a header says of the numbers beside it.

    Cost: a read of the numbers.
    """
    return {
        name: {"shape": list(value.shape), "dtype": _kind(value), "sum": _weighted(value)[0]}
        for name, value in tensors.items()
    }


def check_inventory(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not those of `inventory`, in the field "tensors"; files of before have none of it."""
    if "tensors" not in plain:
        return
    known = table(plain, "tensors")
    for name in sorted(known.keys() ^ tensors.keys()):
        where = "in the file but not in its header" if name in tensors else "in the header but not in the file"
        raise DamagedFileError(f"the tensor {short(name)} is {where}. Fit and save anew")
    for name, value in tensors.items():
        said, here = table(known, name), {"shape": list(value.shape), "dtype": _kind(value)}
        for key, came in here.items():
            if field(said, key) != came:
                raise wrong(f"the {key} of {name}", came, f"{short(said[key])}, which the header says")
        expected, (came, length) = number(said, "sum"), _weighted(value)
        if not abs(came - expected) <= _ROUNDING * length:
            raise DamagedFileError(
                f"the numbers of {name} are not those that were saved: their weighted sum is {came:g}, "
                f"expected {expected:g}. Fit and save anew"
            )


def _kind(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _weighted(value: Tensor) -> tuple[float, float]:
    """Σ w x with fixed weights w in [-1, 1], and the length of x; what is not finite counts as 1, 2 or 3."""
    flat, total, squares = value.detach().reshape(-1), 0.0, 0.0
    across = torch.arange(1, _WIDE + 1, dtype=torch.float64).cos()
    for start in range(0, flat.numel(), _WIDE * _ROWS):
        some = flat[start : start + _WIDE * _ROWS].cpu().double().nan_to_num(1.0, 2.0, 3.0).clamp(-_HUGE, _HUGE)
        rows = torch.nn.functional.pad(some, (0, -len(some) % _WIDE)).view(-1, _WIDE)
        down = torch.arange(start // _WIDE, start // _WIDE + len(rows), dtype=torch.float64)
        total += float((rows @ across) @ (0.7 * down).cos())
        squares += float(some.square().sum())
    return total, math.sqrt(squares)
