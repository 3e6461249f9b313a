"""`slu doctor`: whether a network of the user's can be fitted and scored, tried on a random batch."""

from __future__ import annotations

import importlib
import sys
import traceback
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slu.errors import printable

if TYPE_CHECKING:
    from torch import Tensor, nn

_NOT_OK = 1


class _Type(str, Enum):
    """Of the random inputs."""

    float32 = "float32"
    float64 = "float64"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int64 = "int64"


class _Meaning(str, Enum):
    """Of the outputs."""

    classification = "classification"
    regression = "regression"
    multilabel = "multilabel"


def doctor(  # noqa: PLR0913 (they are the options of the command)
    place: Annotated[
        str,
        typer.Argument(
            help="Where the network is: a module, and in it a torch.nn.Module, or a function or class that makes one "
            "when it is called without arguments.",
            metavar="MODULE:FACTORY",
        ),
    ],
    input_shape: Annotated[str, typer.Option(help="Of one input, without the batch: 3,224,224.", metavar="N,N,…")],
    likelihood: Annotated[_Meaning, typer.Option(help="What the outputs mean.")] = _Meaning.classification,
    params: Annotated[
        list[str] | None, typer.Option(help="Names or globs of the parameters that count; by default all trainable.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Inputs in the random batch.")] = 8,
    dtype: Annotated[_Type, typer.Option(help="Of the inputs; int64 for indices of words.")] = _Type.float32,
    high: Annotated[int, typer.Option(min=1, help="With int64: indices are below this.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Check whether a network can be fitted and scored, and say what to change.

    The module is looked for in the current folder and among what is installed. The network is made, called on a
    random batch, and everything that a fit and a query do is tried on it: how it is called, by which way every
    parameter is differentiated, what that takes in memory and time.

    An example that runs: slu doctor torch.nn:PReLU --input-shape 10

    One of your own: slu doctor my_project.models:resnet --input-shape 3,224,224

    For words: slu doctor my_project.models:classifier --input-shape 128 --dtype int64 --high 30000

    The exit code is 0 if all is well, 1 if not, 2 if the command itself was wrong.

    In Python: print(slu.doctor(model, batch)), with a batch of your own loader.
    """
    shape = _shape(input_shape)
    model = _model(place)
    import slu

    inputs = _inputs((batch, *shape), dtype.value, high)
    diagnosis = slu.doctor(model, inputs, likelihood=likelihood.value, params=params or None)
    typer.echo(diagnosis.to_json() if as_json else printable(str(diagnosis)))
    if not diagnosis.ok:
        raise typer.Exit(_NOT_OK)


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise typer.BadParameter(
            f"{text!r} is no shape; give whole numbers of at least 1, as in 3,224,224", param_hint="--input-shape"
        )
    return shape


def _model(place: str) -> nn.Module:
    """The network at a place, made if it is a function or a class.

    Raises:
        typer.BadParameter: There is no such module or name, or it gives no network.
        typer.Exit: The user's own code failed; one line says where.
    """
    module_name, colon, name = place.partition(":")
    if not (module_name and colon and name):
        raise typer.BadParameter(f"{place!r} has no colon; give module:factory, as in my_project.models:resnet")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _run(f"importing {module_name}", lambda: _import(module_name))
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            there = [each for each in vars(module) if not each.startswith("_")][:8]
            raise typer.BadParameter(f"{module_name} has no {name}; it has {', '.join(there) or 'nothing'}")
        target = getattr(target, part)
    from torch import nn

    model = target if isinstance(target, nn.Module) or not callable(target) else _run(f"calling {place}()", target)
    if not isinstance(model, nn.Module):
        raise typer.BadParameter(
            f"{place} gave {type(model).__name__}; a torch.nn.Module is needed, or a function that makes one"
        )
    return model


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not (error.name and (name == error.name or name.startswith(f"{error.name}."))):
            raise  # the module is there; what it imports is not
        raise typer.BadParameter(
            f"there is no module {name}, neither in the current folder nor installed; run this where it is"
        ) from error


def _run(what: str, action: Any) -> Any:
    """The result of code of the user's; where it fails, one line with the place."""
    try:
        return action()
    except typer.BadParameter:
        raise
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        own = [frame for frame in frames if not frame.filename.startswith("<frozen")]
        at = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
        text = " ".join(str(error).split())
        typer.echo(printable(f"slu: {what} failed: {type(error).__name__}: {text}{at}"), err=True)
        raise typer.Exit(_NOT_OK) from error


def _inputs(shape: tuple[int, ...], dtype: str, high: int) -> Tensor:
    import torch

    from slu.seeds import stream

    drawn = stream(0, "inputs of slu doctor")
    if dtype == "int64":
        return torch.randint(high, shape, generator=drawn)
    return torch.randn(shape, generator=drawn, dtype=torch.float64).to(getattr(torch, dtype))
