"""The plain module inside of what a model is trained with: data parallelism, torch.compile, accelerate.

Every function of slu that takes a model takes `unwrapped(model)` of it, so names of parameters have no prefix, and a
score fitted on a wrapped model is that of the plain one.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from slu.errors import ModelError

_COMPILED, _IN_PLACE = "_orig_mod", "_compiled_call_impl"  # where torch.compile and Module.compile() keep theirs
_FUNCTION = "_torchdynamo_orig_callable"  # where a compiled function keeps the one that was compiled
_PREPARED = "_original_forward"  # where accelerate keeps the forward that it replaced
_PREFIXES = ("module", _COMPILED)
_SHARDED_MODULES = ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")
_SHARDED_TENSORS = ("torch.distributed.tensor", "torch.distributed._tensor")


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside of DistributedDataParallel, DataParallel and torch.compile, in any order; itself without these.

    Raises:
        ModelError: No module; or its parameters are sharded over processes.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    *wrappers, inside = peeled(model)
    _check_whole(wrappers, inside)
    return inside


def peeled(model: nn.Module) -> Iterator[nn.Module]:
    """A model, then what is inside of each of its wrappers; the last is the plain module."""
    each: nn.Module | None = model
    while each is not None:
        yield each
        # Regional compilation of accelerate makes a copy of the modules' tree, and keeps the model as an attribute.
        inside = each._modules[_COMPILED] if _COMPILED in each._modules else vars(each).get(_COMPILED)
        if inside is None and isinstance(each, DataParallel | DistributedDataParallel):
            inside = each.module
        each = inside


def possible_names(name: str) -> Iterator[str]:
    """What a name or glob may be called in the plain module: itself, then one prefix less each; "" for the module.

    >>> list(possible_names("module._orig_mod.head.weight")), list(possible_names("modules.0"))
    (['module._orig_mod.head.weight', '_orig_mod.head.weight', 'head.weight'], ['modules.0'])
    """
    yield name
    while name.partition(".")[0] in _PREFIXES:
        name = name.partition(".")[2]
        yield name


def stand_ins(module: nn.Module) -> dict[str, Any]:
    """Attributes of a module, or of one inside of it, with which it is called as it was written.

    A compiled module runs what was compiled, without the graph and the hooks that per-example gradients need. One that
    accelerate has prepared for mixed precision switches autocast on, where slu has switched it off.
    """
    own = vars(module)
    plain: dict[str, Any] = {}
    if own.get(_IN_PLACE) is not None:
        plain[_IN_PLACE] = None
    if "forward" in own and _COMPILED in module._modules:
        plain["forward"] = module._modules[_COMPILED]
    elif "forward" in own and _PREPARED in own:
        plain["forward"] = own[_PREPARED]
    elif hasattr(own.get("forward"), _FUNCTION):
        written = getattr(own["forward"], _FUNCTION)
        of_copied = isinstance(written, MethodType) and type(written.__self__) is type(module)
        # A copy of the model has the compiled function of the model that was copied.
        plain["forward"] = MethodType(written.__func__, module) if of_copied else written
    return plain


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module without those that torch.compile and accelerate add to it."""
    added = {_PREPARED, "_is_torch_compile", "_is_accelerate_prepared", *stand_ins(module)}
    return {key: value for key, value in vars(module).items() if key not in added}


def is_compiled(model: nn.Module) -> bool:
    """Whether `torch.compile` made it, its forward or a module of it, as a wrapper or in place."""
    return any(
        hasattr(each, _COMPILED) or hasattr(each.forward, _FUNCTION) or getattr(each, _IN_PLACE) is not None
        for each in model.modules()
    )


def is_prepared(model: nn.Module) -> bool:
    """Whether accelerate has put autocast around the forward of it or of a module of it."""
    return any(_PREPARED in vars(each) for each in model.modules())


def _check_whole(wrappers: list[nn.Module], inside: nn.Module) -> None:
    """Refuse parameters of which a process has a part, by the names of classes: nothing distributed is imported."""
    for name, module in (*(("", each) for each in wrappers), *inside.named_modules()):
        # Also while it has its parameters gathered, as the outermost module has after a call.
        if _made_in(type(module), _SHARDED_MODULES):
            raise _sharded(f"{f'module {name}' if name else 'it'} is of the class {type(module).__name__} (FSDP)")
        for key, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if _made_in(type(value), _SHARDED_TENSORS):
                raise _sharded(f"{f'{name}.' if name else ''}{key} is a {type(value).__name__}")


def _made_in(kind: type, packages: tuple[str, ...]) -> bool:
    return any(str(each.__module__).startswith(packages) for each in kind.__mro__)


def _sharded(seen: str) -> ModelError:
    return ModelError(
        f"the model is sharded over processes: {seen}. The gradients of single examples need the whole parameters of "
        "a layer. Fit and score with an unsharded copy, for which forward and backward passes of a few inputs must fit "
        "into memory: on every process weights = get_model_state_dict(model, "
        "options=StateDictOptions(full_state_dict=True)), both of torch.distributed.checkpoint.state_dict, and "
        "load_state_dict(weights) of the same model made anew, which no wrapper has sharded"
    )
