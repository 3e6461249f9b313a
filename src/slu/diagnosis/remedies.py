"""From an exception to one line of what was seen and one of what to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from slu.data import Signature
from slu.data.signature import base_model
from slu.diagnosis.subject import described
from slu.errors import ModelCallError, SluError, out_of_memory
from slu.parameters.wrappers import stand_ins

_TRY = "call the model on this batch yourself to see the whole error"


@dataclass(frozen=True)
class Scene:
    """What is known where an exception came from.

    Attributes:
        model: Whose call failed.
        inputs: It was called on; None before a batch was read.
    """

    model: nn.Module
    inputs: Any = None


def explained(error: Exception, scene: Scene) -> tuple[str, str]:
    """What was seen, in one line, and the remedy; empty for an error of slu, whose message says what to do."""
    if isinstance(error, SluError) and not isinstance(error, ModelCallError):
        return " ".join(str(error).split()), ""
    remedy = error.hint if isinstance(error, ModelCallError) else None
    remedy = remedy or next((advice for rule in _RULES if (advice := rule(error, _with_causes(error), scene))), _TRY)
    if isinstance(error, ModelCallError):
        return error.cause, remedy
    first = " ".join((str(error).strip().splitlines() or [""])[0].split())
    return f"{type(error).__name__}: {first}", remedy


def _with_causes(error: BaseException) -> str:
    """The text of an error and of those that caused it, in lower case."""
    texts, each = [], error
    while each is not None and len(texts) < 5:
        texts.append(str(each))
        each = each.__cause__ or each.__context__
    return " ".join(texts).lower()


def _of_memory(error: Exception, _: str, __: Scene) -> str:
    return "use smaller batches, or fewer parameters (params=)" if out_of_memory(error) else ""


def _of_arguments(_: Exception, text: str, scene: Scene) -> str:
    """Of the model's own `forward`: that of a module inside of it may be called wrongly for other reasons."""
    inner = base_model(scene.model)
    name = getattr(stand_ins(inner).get("forward", inner.forward), "__qualname__", None)
    signature = Signature.of(inner)
    if name is None or not signature.names or f"{name}() ".lower() not in text:
        return ""
    names = signature.required or signature.names
    keys = ", ".join(f"{each!r}: ..." for each in names)
    inputs = f"({', '.join(names)})" if len(names) > 1 else ", ".join(names)
    return (
        f"the model has {signature}: give ({inputs}, targets), or a dict by names, {{{keys}}}, or say how it is called "
        "(forward=)"
    )


def _of_shapes(_: Exception, text: str, scene: Scene) -> str:
    if not any(word in text for word in ("shape", "size mismatch", "size of tensor", "expected input", "dimension")):
        return ""
    if scene.inputs is None:
        return ""
    for name, module in scene.model.named_modules():
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd | nn.RNNBase | nn.Embedding):
            first = f"{name or 'the model'} = {module}"
            return f"give inputs of the shape that {first} takes; they are {described(scene.inputs)}"
    return f"give inputs of the shape that the model was trained on; they are {described(scene.inputs)}"


_RULES: tuple[Callable[[Exception, str, Scene], str], ...] = (
    _of_memory,
    _of_arguments,
    _of_shapes,
)
"""Each gives a remedy, or nothing where the error is not its own; the first that does counts."""
