"""From an exception to one line of what was seen and one of what to change."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from slu.diagnosis.subject import described
from slu.errors import ModelCallError, SluError
from slu.gradients import out_of_memory


@dataclass(frozen=True)
class Scene:
    """What is known where an exception came from.

    Attributes:
        model: Whose call failed.
        inputs: It was called on; None before a batch was read.
    """

    model: nn.Module
    inputs: Any = None

    @property
    def call(self) -> str:
        """How the model is called, as one would write it."""
        if isinstance(self.inputs, Mapping):
            return "model(**batch)"
        return "model(*batch)" if isinstance(self.inputs, tuple | list) else "model(batch)"


def explained(error: Exception, scene: Scene) -> tuple[str, str]:
    """What was seen, in one line, and the remedy; of an error of slu the last clause, unless a better one is known."""
    text = " ".join(str(error).split())
    if isinstance(error, ModelCallError) and error.hint is not None:
        return error.cause, error.hint
    remedy = next((advice for rule in _RULES if (advice := rule(error, _with_causes(error), scene))), "")
    if isinstance(error, SluError):
        clause, separator, advice = text.rpartition("; ")
        clause, _, advice = (clause, separator, advice) if clause else text.rpartition(". ")
        return (clause, advice) if clause and not remedy else (text, remedy)
    first = " ".join((str(error).strip().splitlines() or [""])[0].split())
    return f"{type(error).__name__}: {first}", remedy or "call the model on this batch yourself to see the whole error"


def _with_causes(error: BaseException) -> str:
    """The text of an error and of those that caused it, in lower case."""
    texts, each = [], error
    while each is not None and len(texts) < 5:
        texts.append(str(each))
        each = each.__cause__ or each.__context__
    return " ".join(texts).lower()


def _of_memory(error: Exception, _: str, __: Scene) -> str:
    return "use smaller batches, or fewer parameters (params=)" if out_of_memory(error) else ""


def _of_checkpointing(_: Exception, text: str, __: Scene) -> str:
    return "checkpoint(function, ..., use_reentrant=False)" if "use_reentrant" in text else ""


def _of_statistics(_: Exception, text: str, __: Scene) -> str:
    return "train with track_running_stats=True, or use nn.GroupNorm" if "running statistics" in text else ""


def _of_arguments(error: Exception, text: str, scene: Scene) -> str:
    if "required positional argument" not in text and "unexpected keyword" not in text and "takes" not in text:
        return ""
    if not isinstance(error, TypeError) and not isinstance(error.__cause__, TypeError):
        return ""
    names = list(inspect.signature(scene.model.forward).parameters)
    if isinstance(scene.inputs, Mapping):
        kept = ", ".join(f"{name}=batch[{name!r}]" for name in names if name in scene.inputs)
        return f"forward=lambda model, batch: model({kept}); the model takes {', '.join(names)}"
    return f"give the inputs by name, {{{', '.join(f'{name!r}: ...' for name in names)}}}, or in a tuple, or forward="


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
    _of_checkpointing,
    _of_statistics,
    _of_arguments,
    _of_shapes,
)
"""Each gives a remedy, or nothing where the error is not its own; the first that does counts."""
