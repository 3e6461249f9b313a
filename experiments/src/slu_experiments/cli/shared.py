"""What the commands of experiments share: options of several values, threads, and where things are."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

from slu.errors import SettingError

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from slu_experiments.running import Place

OUT = Path("slu-results")
_WIDE = 1000  # letters: wider than any table
_KEPT = "what is done is kept; the same command goes on from there"


def settings(incomplete: str) -> list[str]:
    """Names of settings, for a shell's completion."""
    from slu_experiments.settings import SETTINGS

    return [name for name in SETTINGS if name.startswith(incomplete)]


def methods(incomplete: str) -> list[str]:
    """Names of methods, for a shell's completion."""
    from slu_experiments.settings import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


SettingName: TypeAlias = Annotated[
    str,
    typer.Option(
        help="mnist-mlp, fmnist-lenet, cifar10-resnet, celeba-van, imagenet-swin, mnist-lenet or digits-mlp.",
        autocompletion=settings,
    ),
]
Data: TypeAlias = Annotated[Path | None, typer.Option(help="Where the data are; without it, SLU_DATA says so.")]
Out: TypeAlias = Annotated[Path, typer.Option(help="Folder with weights/, runs/, tables/ and figures/.")]
Points: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Training points to fit on; without it, as many as the setting has.")
]
Queries: TypeAlias = Annotated[
    int | None, typer.Option(min=2, help="Test points of each set, at most; without it, all.")
]
Epochs: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Of training, instead of the recipe's.")]
Subset: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Train on this many points only.")]
Threads: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Of torch; last digits may depend on it.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


class Lists(TyperCommand):
    """A command in which options of several values take them one after another: --seeds 1 2 3, or --seeds 1,2,3."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        several = {
            name for parameter in self.params if getattr(parameter, "multiple", False) for name in parameter.opts
        }
        return super().parse_args(ctx, spread(args, several))


def spread(args: Sequence[str], several: set[str]) -> list[str]:
    """The option's name before each of its values.

    >>> spread(["--seeds", "1", "2,3", "--json"], {"--seeds"})
    ['--seeds', '1', '--seeds', '2', '--seeds', '3', '--json']
    """
    named: list[str] = []
    open_option, given = "", True
    for arg in args:
        name, sign, value = arg.partition("=")
        if arg.startswith("--") and not (sign and name in several):
            named += [open_option] if open_option and not given else []
            open_option, given = (arg, False) if arg in several else ("", True)
            named += [] if open_option else [arg]
        elif arg.startswith("--"):
            open_option, given = name, True
            named += [part for each in value.split(",") if each for part in (name, each)]
        elif open_option:
            given = True
            # A setting's own value, rank=[1,2], may have commas.
            values = [arg] if "=" in arg else [each for each in arg.split(",") if each]
            named += [part for each in values for part in (open_option, each)]
        else:
            named.append(arg)
    return named + ([open_option] if open_option and not given else [])


def place_of(out: Path, data: Path | None) -> Place:
    """Where results go and data are; the folder is made now, before any work.

    Raises:
        SettingError: It cannot be.
    """
    from slu_experiments.running import Place

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise SettingError(
            f"cannot make the folder {str(out)!r} ({reason.strerror}); name another with --out"
        ) from reason
    return Place(out, None if data is None else str(data))


def training_of(epochs: int | None, subset: int | None) -> dict[str, int]:
    """What is asked of the training otherwise."""
    asked = {"epochs": epochs, "subset": subset}
    return {name: value for name, value in asked.items() if value is not None}


def changes_of(options: Sequence[str]) -> dict[str, Any]:
    """Settings of a method, given as name=value; values are read as JSON, or else as words.

    >>> changes_of(["rank=20", "sketch=srft", "keep=0.9"])
    {'rank': 20, 'sketch': 'srft', 'keep': 0.9}
    """
    changes = {}
    for option in options:
        name, sign, value = option.partition("=")
        if not sign or not name.isidentifier():
            raise SettingError(f"an option is written name=value, like rank=20; got {option!r}")
        try:
            changes[name] = json.loads(value)
        except ValueError:
            changes[name] = value
    return changes


def tell(text: str) -> None:
    """A line that is shown in a terminal alone."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)


def warn(text: str) -> None:
    """A line that is written to a log as well."""
    typer.echo(f"slu-paper: {text}", err=True)


def print_whole(table: RichTable) -> None:
    """A table that is cut has lost its point: in a narrow terminal its lines wrap."""
    from rich.console import Console

    width = Console(width=_WIDE).measure(table).maximum
    Console(highlight=False, width=max(width, Console().width)).print(table)


@contextmanager
def at_work(threads: int | None, interrupted: Callable[[], str] = lambda: _KEPT) -> Iterator[None]:
    """So many threads of torch; an interrupt says how to go on."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    except KeyboardInterrupt:
        if told := interrupted():
            warn(told)
        raise
    finally:
        torch.set_num_threads(before)
