"""Which parameters a user means: by module, name, prefix, glob, predicate, or as "last" and "lora"."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from slu.errors import SelectionError
from slu.parameters.wrappers import possible_names, unwrapped

Predicate: TypeAlias = Callable[[str, nn.Parameter], bool]

Choice: TypeAlias = str | nn.Module | Predicate | Iterable["str | nn.Module | Predicate"] | None
"""A module, a name, prefix or glob, "last", "lora", a predicate, a list of these, or None for all trainable ones."""

LAST, LORA = "last", "lora"

_ADAPTER = "lora_"  # with which peft begins the names of the modules and parameters that it adds
_NAMED = 3  # names in a message
_UNFREEZE = (
    "unfreeze them with requires_grad_(True), or choose them although they are frozen, by exact names or by a "
    "predicate: params=lambda name, parameter: True"
)
_FLOAT_CURE = "Fit on the float model that was quantized, or choose the float parameters that are left with params="


def chosen_names(model: nn.Module, params: Choice) -> list[str]:
    """The names of the chosen parameters in the order of `named_parameters`, each tensor under its first name.

    Raises:
        SelectionError: Nothing was chosen; the message says why.
    """
    if params is None:
        return _trainable(model)
    names = _first_names(model)
    chosen: set[str] = set()
    parts = [params] if isinstance(params, str | nn.Module) or callable(params) else _listed(params)
    for part in parts:
        chosen |= _matching(model, names, part)
    if not chosen:
        raise SelectionError("an empty list selects no parameters; give names or globs, or leave params out")
    return [name for name, _ in model.named_parameters() if name in chosen]


def check_real(name: str, value: Tensor) -> None:
    """Refuse a parameter of which no gradient exists.

    Raises:
        SelectionError: It has whole numbers, as quantized weights have, or complex ones.
    """
    if value.dtype.is_complex:
        raise SelectionError(f"{name} is {value.dtype}; only real floating-point parameters can be selected")
    if _is_quantized(value):
        raise SelectionError(f"{name} is {_kind(value)}, quantized or whole numbers without a gradient. {_FLOAT_CURE}")


def _trainable(model: nn.Module) -> list[str]:
    named = dict(model.named_parameters())
    packed = _packed_modules(model)
    if packed:
        raise SelectionError(
            f"the model has quantized modules ({_some(packed)}), whose weights are packed and no parameters, and which "
            f"no gradient passes. {_FLOAT_CURE}, behind the quantized modules"
        )
    chosen = [name for name, value in named.items() if value.requires_grad]
    if not chosen:
        raise SelectionError(f"the model has {len(named)} parameters but none is trainable{_frozen(named)}")
    return chosen


def _listed(params: Any) -> list[Any]:
    try:
        return list(params)
    except TypeError:
        raise SelectionError(_not_a_choice(params)) from None


def _first_names(model: nn.Module) -> dict[str, str]:
    """From every name to the tensor's first: a tied tensor may be asked for by any of its names."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(value), name) for name, value in model.named_parameters(remove_duplicate=False)}


def _matching(model: nn.Module, names: Mapping[str, str], part: Any) -> set[str]:
    """The first names of what one item of a choice means."""
    named = dict(model.named_parameters())
    if isinstance(part, nn.Module):
        return _unfrozen(_of_module(model, part), named, f"the module {type(part).__name__}")
    if isinstance(part, Tensor):
        raise SelectionError(_not_a_choice(part))
    if isinstance(part, str):
        return _by_text(model, names, named, part)
    if not callable(part):
        raise SelectionError(_not_a_choice(part))
    _check_predicate(part)
    chosen = {name for name, value in named.items() if part(name, value)}
    if not chosen:
        raise SelectionError(f"the predicate chose none of the model's {len(named)} parameters")
    return chosen


def _check_predicate(predicate: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(predicate)
    except (TypeError, ValueError):
        return  # of some functions in C nothing is known
    try:
        signature.bind("name", None)
    except TypeError as reason:
        raise SelectionError(
            f"the predicate takes {signature}, and is called with two arguments, a name and its parameter ({reason}); "
            "write params=lambda name, parameter: …"
        ) from None


def _by_text(model: nn.Module, names: Mapping[str, str], named: Mapping[str, nn.Parameter], text: str) -> set[str]:
    matching: set[str] = set()
    for name in possible_names(text):  # the names of a wrapped model have a prefix; those of the module go first
        if name in names:
            return {names[name]}
        matching = matching or (_beginning_or_glob(names, name) if name or not text else set(named))
    if not matching and text == LAST:
        return _last_layer(names, named)
    if not matching and text == LORA:
        return _adapters(names, named)
    if not matching:
        raise SelectionError(_no_match(model, names, text))
    return _unfrozen(matching, named, f"params={text!r}")


def _beginning_or_glob(names: Mapping[str, str], text: str) -> set[str]:
    matching = {first for name, first in names.items() if name.startswith(f"{text}.")}
    return matching | {first for name, first in names.items() if fnmatchcase(name, text)}


def _of_module(model: nn.Module, module: nn.Module) -> set[str]:
    module = unwrapped(module)
    if not any(each is module for each in model.modules()):
        raise SelectionError(
            f"params= is a {type(module).__name__} that is not part of the model, a copy perhaps; take it from the "
            "model that is passed, as model.head, or give its name, as 'head'"
        )
    inside = {id(value) for value in module.parameters()}
    chosen = {name for name, value in model.named_parameters() if id(value) in inside}
    if not chosen:
        packed = _packed_modules(module)
        why = f": its weights are quantized and packed. {_FLOAT_CURE}" if packed else "; choose one that has"
        raise SelectionError(f"the module {type(module).__name__} has no parameters{why}")
    return chosen


def _last_layer(names: Mapping[str, str], named: Mapping[str, nn.Parameter]) -> set[str]:
    """All trainable parameters of the last module, in the order of definition, that has some of its own."""
    trainable = [name for name, first in names.items() if named[first].requires_grad]
    if not trainable:
        raise SelectionError(f"params='last': the model has {len(named)} parameters but none is trainable"
                             f"{_frozen(named)}")  # fmt: skip
    owner = _owner(trainable[-1])
    return {names[name] for name in trainable if _owner(name) == owner}


def _owner(name: str) -> str:
    """The module that a parameter is of; that of a parametrized weight is the layer, as of its bias."""
    return name.partition(".parametrizations.")[0] if ".parametrizations." in name else name.rpartition(".")[0]


def _adapters(names: Mapping[str, str], named: Mapping[str, nn.Parameter]) -> set[str]:
    matching = {first for name, first in names.items() if any(part.startswith(_ADAPTER) for part in name.split("."))}
    if not matching:
        trainable = [name for name, value in named.items() if value.requires_grad]
        raise SelectionError(
            f"params='lora': no parameter has a part of its name that begins with {_ADAPTER!r}, as peft's adapters do; "
            f"of the model's {len(named)} parameters {len(trainable)} are trainable ({_some(trainable)}). Choose "
            "among these by a prefix or a glob, or leave params out for all of them"
        )
    return _unfrozen(matching, named, "params='lora'")


def _unfrozen(matching: set[str], named: Mapping[str, nn.Parameter], what: str) -> set[str]:
    chosen = {name for name in matching if named[name].requires_grad}
    if not chosen:
        frozen = {name: value for name, value in named.items() if name in matching}
        raise SelectionError(f"{what} matches {len(frozen)} parameters, but none is trainable{_frozen(frozen)}")
    return chosen


def _frozen(named: Mapping[str, nn.Parameter]) -> str:
    """Why parameters cannot be differentiated, and the cure, as the end of a sentence."""
    whole = {name: value for name, value in named.items() if _is_quantized(value)}
    if whole:
        first, value = next(iter(whole.items()))
        return (
            f": {len(whole)} are quantized or whole numbers ({first} is {_kind(value)}), {len(named) - len(whole)} are "
            f"frozen (requires_grad=False). {_FLOAT_CURE}"
        )
    if not named:
        return "; pass a model with parameters"
    return f": all {len(named)} are frozen (requires_grad=False). Either {_UNFREEZE}"


def _no_match(model: nn.Module, names: Mapping[str, str], text: str) -> str:
    modules = dict(model.named_modules())
    parent, inside = text.rpartition(".")[0], modules.get(text)
    packed = _packed_modules(inside if inside is not None else modules.get(parent, nn.Identity()))
    if packed and (inside is not None or parent):
        return f"{text!r} is of a quantized module, whose weights are packed and no parameters. {_FLOAT_CURE}"
    if inside is not None:
        return f"the module {text!r} has no parameters; choose one that has"
    near = difflib.get_close_matches(text, [*names, *filter(None, modules)], n=_NAMED, cutoff=0.4)
    near = near or list(names)[:_NAMED]
    hint = f"; near it are {', '.join(near)}" if near else "; the model has no parameters"
    return f"no parameter or module is called or matches {text!r}{hint}"


def _not_a_choice(came: object) -> str:
    return (
        f"parameters are chosen by module, by name or by a predicate, got a {type(came).__name__}; give a module of "
        "the model, the names that model.named_parameters() gives, their beginnings or globs of them"
    )


def _packed_modules(model: nn.Module) -> list[str]:
    """Modules of torch's quantization, whose weights are packed into objects that are no parameters."""
    return [name or "the model itself" for name, module in model.named_modules() if _is_packed(module)]


def _is_packed(module: nn.Module) -> bool:
    kind = type(module)
    if ".quantized" not in kind.__module__ or kind.__name__.endswith("PackedParams"):  # the latter is inside the former
        return False
    return hasattr(module, "_packed_params") or hasattr(module, "_all_weight_values")


def _is_quantized(value: Tensor) -> bool:
    if not (value.dtype.is_floating_point or value.dtype.is_complex):
        return True
    if not is_traceable_wrapper_subclass(value):
        return False
    inner = [getattr(value, name) for name in value.__tensor_flatten__()[0]]
    return any(isinstance(each, Tensor) and not each.dtype.is_floating_point for each in inner)


def _kind(value: Tensor) -> str:
    dtype = str(value.dtype)
    plain = type(value) in (torch.Tensor, nn.Parameter)
    return dtype if plain else f"{dtype} ({type(value).__name__})"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more if names else "none"
