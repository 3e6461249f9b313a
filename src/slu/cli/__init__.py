"""The `slu` command: one file per subcommand.

Heavy modules are imported inside the commands, so that asking for help is quick.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from slu.cli import demo, doctor, inspect
from slu.errors import SluError

_FAILED, _INTERRUPTED = 1, 130


class _Commands(TyperGroup):
    """Commands that report an expected failure in one line on stderr, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SluError as error:
            typer.echo(f"slu: {error}", err=True)
            raise typer.Exit(_FAILED) from error
        except KeyboardInterrupt as error:
            typer.echo("slu: interrupted", err=True)
            raise typer.Exit(_INTERRUPTED) from error


app = typer.Typer(
    name="slu",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # An unexpected error is a bug: the plain traceback is what a report needs.
    pretty_exceptions_enable=False,
)
app.command(name="demo")(demo.demo)
app.command(name="doctor")(doctor.doctor)
app.command(name="inspect")(inspect.inspect)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"slu {importlib.metadata.version('slu')}")
        raise typer.Exit()


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    """How unsure is a trained PyTorch network about an input?

    slu finds the directions in which the training data pin the network's parameters down, keeps
    them as a small sketch, and scores an input by how much its prediction could change in all
    other directions: larger means less sure.

    Start with: slu demo. Will your own network do? slu doctor

    The paper's experiments are a package of their own with the command slu-paper.
    """


def main() -> None:
    """The entry point of the installed command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # neither where it is closed nor where something else stands for it
            stream.reconfigure(errors="replace")
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        _leave_output(error)


def _leave_output(error: OSError) -> None:
    """End with one line where the output cannot be written: a full disk, or a pipe that nobody reads any more."""
    with suppress(OSError):
        typer.echo(f"slu: the output could not be written: {error.strerror}", err=True)
    # What is still in the buffers would be written once more at the end, and fail again.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError, ValueError):
            os.dup2(nowhere, stream.fileno())
    raise SystemExit(_FAILED)
