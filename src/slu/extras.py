"""Optional packages: asked for where they are needed, with the cure named when they are missing."""

from __future__ import annotations

from importlib import import_module

from slu.errors import SluError


def require(package: str, purpose: str, install: str = "slu[demo]") -> None:
    """Refuse with one clear line if an optional package is not installed.

    Args:
        package: What is imported, "sklearn.metrics".
        purpose: What it is needed for, as the message says it.
        install: What pip installs it with.

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
