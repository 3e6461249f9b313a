"""The `slu-paper` command: one file per subcommand.

Heavy modules are imported inside the commands, so that asking for help is quick.
"""

from __future__ import annotations

import importlib.metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from slu.errors import SluError
from slu_experiments.cli import data, figure, publish, reproduce, score, table, train
from slu_experiments.cli.shared import Lists, warn

_FAILED, _INTERRUPTED = 1, 130


class _Commands(TyperGroup):
    """Commands that report an expected failure in one line on stderr, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SluError as error:
            warn(str(error))
            raise typer.Exit(_FAILED) from error
        except KeyboardInterrupt as error:
            warn("interrupted")
            raise typer.Exit(_INTERRUPTED) from error


app = typer.Typer(
    name="slu-paper",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    # An unexpected error is a bug: the plain traceback is what a report needs.
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.command(name="train")(train.train)
app.command(name="score", cls=Lists)(score.score)
app.command(name="table", cls=Lists)(table.table)
app.command(name="figure", cls=Lists)(figure.figure)
app.command(name="reproduce", cls=Lists)(reproduce.reproduce)
app.command(name="publish", cls=Lists)(publish.publish)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"slu-paper {importlib.metadata.version('slu-experiments')}")
        raise typer.Exit()


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    """The experiments of the paper on sketched Lanczos uncertainty.

    Data sets, networks, recipes, numbers and figures of the paper as commands. A first try needs no
    download and takes a few minutes:

    slu-paper reproduce --setting digits-mlp
    """
