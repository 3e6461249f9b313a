"""What the `forward` of a model takes, behind the wrappers that hide it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from slu.data.structure import TARGETS
from slu.parameters import unwrapped

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ANY = inspect.Parameter.VAR_POSITIONAL


@dataclass(frozen=True)
class Signature:
    """The arguments of a model's `forward`.

    Attributes:
        names: Of the arguments that can be given by position, in order.
        needed: How many of these have no default.
        inputs: Names of the arguments that take inputs, by position or by keyword: those without a default, and those
            whose default is None or a tensor, but for targets and flags; "*args" where any number is taken.
        required: Names of all arguments without a default.
        keywords: Names that can be given by keyword; None where **kwargs takes any.
    """

    names: tuple[str, ...]
    needed: int
    inputs: tuple[str, ...]
    required: tuple[str, ...]
    keywords: frozenset[str] | None

    @classmethod
    def of(cls, model: nn.Module) -> Signature:
        """The signature of a model; of one that cannot be read, that of (*args, **kwargs)."""
        try:
            parameters = list(inspect.signature(base_model(model).forward).parameters.values())
        except (TypeError, ValueError):
            return cls((), 0, ("*args",), (), None)
        positional = [each for each in parameters if each.kind in _POSITIONAL]
        keywords: set[str] | None = {
            each.name for each in parameters if each.kind in (_POSITIONAL[1], inspect.Parameter.KEYWORD_ONLY)
        }
        for each in parameters:
            if each.kind is inspect.Parameter.VAR_KEYWORD:
                declared = _declared(each.annotation)
                keywords = None if declared is None or keywords is None else keywords | declared
        return cls(
            tuple(each.name for each in positional),
            sum(each.default is inspect.Parameter.empty for each in positional),
            tuple("*args" if each.kind is _ANY else each.name for each in parameters if _takes_input(each)),
            tuple(
                each.name
                for each in parameters
                if each.default is inspect.Parameter.empty
                and each.kind in (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
            ),
            None if keywords is None else frozenset(keywords),
        )

    def others(self, count: int) -> tuple[str, ...]:
        """Names of the inputs that may be given beside the first `count` by position."""
        return tuple(name for name in self.inputs if name not in self.names[:count])

    def __str__(self) -> str:
        names = [*self.names, *sorted((self.keywords or frozenset()).difference(self.names))]
        listed = ", ".join(names[:12]) + (", …" if len(names) > 12 or self.keywords is None else "")
        return f"forward({listed})"


def base_model(model: nn.Module) -> nn.Module:
    """The module whose `forward` says what a model takes: behind wrappers and peft."""
    seen: set[int] = set()
    while id(model) not in seen:
        seen.add(id(model))
        model = unwrapped(model)
        if hasattr(model, "peft_config") and callable(base := getattr(model, "get_base_model", None)):
            model = typing.cast(nn.Module, base())
    return model


def predicts_next(model: nn.Module) -> bool:
    """Whether a model of transformers is a causal language model, by the name of its class."""
    return type(base_model(model)).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def decoder_inputs(model: nn.Module) -> Callable[..., Any] | None:
    """How an encoder-decoder model of transformers makes inputs of its decoder from labels; None of other models."""
    made = getattr(base_model(model), "prepare_decoder_input_ids_from_labels", None)
    return made if callable(made) else None


def _takes_input(parameter: inspect.Parameter) -> bool:
    if parameter.kind in (_ANY, inspect.Parameter.VAR_KEYWORD):
        return parameter.kind is _ANY
    if parameter.default is inspect.Parameter.empty:
        return True
    flag = "bool" in str(parameter.annotation)  # as transformers has them, bool | None = None
    missing = parameter.default is None or isinstance(parameter.default, Tensor)
    return missing and not flag and parameter.name not in TARGETS


def _declared(annotation: Any) -> set[str] | None:
    """The keys of **kwargs: Unpack[SomeTypedDict], which takes these alone; None where any are taken."""
    unpack = getattr(typing, "Unpack", None)  # Python 3.11
    if unpack is None or typing.get_origin(annotation) is not unpack:
        return None
    (declared,) = typing.get_args(annotation)
    return set(declared.__annotations__) if typing.is_typeddict(declared) else None
