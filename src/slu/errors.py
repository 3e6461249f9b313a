"""Every exception and warning of the library, and what optional packages are asked for with.

A message says what came, what was expected and what to do. The classes also derive from the
built-in exception a caller would guess, so `except ValueError` keeps working.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module


def printable(text: str, keep: str = "\n") -> str:
    r"""A text that a terminal shows and does not obey: what is not printable stands as its escape, but for `keep`.

    Names in a file may hold sequences that move the cursor or hide what was written.

    >>> print(printable("layer\x1b[2J\u202e, ×\r"))
    layer\x1b[2J\u202e, ×\r
    """
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)


class SluError(Exception):
    """The base of every error raised by slu; its message may quote a file, and is printable."""

    def __str__(self) -> str:
        return printable(super().__str__())


class SettingError(SluError, ValueError):
    """A setting that cannot work: an unknown name, or a rank that nothing allows."""


class SelectionError(SluError, ValueError):
    """The choice of parameters is empty or names something the model does not have."""


class ModelError(SluError, ValueError):
    """The model has no function of one input that could be differentiated."""


class ModelCallError(ModelError, RuntimeError):
    """The model or the user's `forward` raised an exception, the `__cause__`; the message names the batch.

    `cause` is the message without the remedy, `hint` the remedy, if one is known.
    """

    def __init__(self, cause: str, hint: str | None = None) -> None:
        super().__init__(cause if hint is None else f"{cause}. {hint}")
        self.cause = cause
        self.hint = hint


class DataError(SluError, ValueError):
    """The data are empty, not finite, or of a shape the model or likelihood cannot take."""


class NotFiniteError(DataError):
    """Inputs, outputs or gradients of some points hold NaN or infinity; `places` are these points of their batch.

    None where the numbers belong to no point.
    """

    def __init__(self, message: str, places: list[int] | None = None) -> None:
        super().__init__(message)
        self.places = places


class MissingDataError(DataError):
    """A data set, or a file of one, that is not on this machine."""


class ChangedDataError(DataError):
    """The data differ between two passes, so that the passes do not see one matrix."""


class NumericalError(SluError, RuntimeError):
    """A computation gave values that are not finite; `partial` holds the results before that."""

    def __init__(self, message: str, partial: object = None) -> None:
        super().__init__(message)
        self.partial = partial


class BudgetError(SluError, ValueError):
    """A memory budget that cannot be read, or in which nothing fits."""


class OutOfMemoryError(SluError, MemoryError):
    """Memory ran out; the message says in what, what was planned, and which settings take less."""


class StorageError(SluError, RuntimeError):
    """A file that cannot be written, is not there, or is not one this version can use.

    Its message is one line: a name in a file must not begin one of its own.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), keep="")


class DamagedFileError(StorageError):
    """A file that was cut, flipped or edited."""


class MismatchError(StorageError):
    """A file that belongs to another model, other data or other settings."""


class NotFiniteWarning(UserWarning):
    """Points of a query hold NaN or infinity, or overflow; their score is infinity, the others are unharmed."""


class MisuseWarning(UserWarning):
    """What was given works, but is probably not what was meant; the message says why, and what to do."""


class CalibrationWarning(UserWarning):
    """Flags and p-values of a score may not mean what they say; the message says why, and what to do."""


def unknown(what: str, came: object, valid: Iterable[str]) -> SettingError:
    """The error for a name that is not in a table; the valid names are read from the table.

    >>> unknown("reading", "varience", ["variance", "relative"])
    SettingError("unknown reading 'varience'; valid are 'variance', 'relative'")
    """
    names = ", ".join(repr(name) for name in valid)
    return SettingError(f"unknown {what} {came!r}; valid are {names}")


def out_of_memory(reason: BaseException) -> bool:
    """Whether an exception means that memory ran out; torch raises a plain RuntimeError on the CPU."""
    import torch

    return isinstance(reason, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(reason)


def require(package: str, purpose: str, install: str = "slu[demo]") -> None:
    """Refuse if an optional package, such as "sklearn.metrics", is not installed; `install` is what pip gets it with.

    Raises:
        SluError: The package is missing. One that is there but broken raises its own error.

    >>> require("no_such_package", "counting sheep")
    Traceback (most recent call last):
    slu.errors.SluError: counting sheep needs the package 'no_such_package', ...
    """
    root = package.partition(".")[0]
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != root:
            raise
        raise SluError(
            f"{purpose} needs the package {root!r}, which is not installed; install it with: pip install '{install}'"
        ) from error
