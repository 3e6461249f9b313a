"""What a model, a batch and a return value are, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from slu.parameters import unwrapped
from slu.parameters.wrappers import is_compiled, is_prepared, peeled

_TRAINING, _EVAL = "in training mode (slu calls it in eval mode)", "in eval mode"


def described_model(model: nn.Module) -> str:
    """Class, size, type, device and mode of the module inside of wrappers, and these."""
    wrapped, model = wrappers(model), unwrapped(model)
    values = list(model.parameters())
    types = ", ".join(sorted({plain(value.dtype) for value in values})) or "no type"
    devices = ", ".join(sorted({str(value.device) for value in values})) or "no device"
    mode = "; ".join([_TRAINING if model.training else _EVAL, *wrapped])
    return f"{type(model).__name__}, {count(model):,} parameters in {len(values)} tensors, {types} on {devices}, {mode}"


def count(model: nn.Module) -> int:
    """Numbers in all parameters, without those of lazy modules, which have none yet."""
    return sum(value.numel() for value in model.parameters() if not nn.parameter.is_lazy(value))


def wrappers(model: nn.Module) -> list[str]:
    """What the model is wrapped in or was made into."""
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    names = [f"wrapped in {type(each).__name__}" for each in peeled(model) if isinstance(each, parallel)]
    if is_compiled(model):
        names.append("compiled by torch.compile (slu calls what was compiled, eagerly)")
    if is_prepared(model):
        names.append("prepared by accelerate for mixed precision (slu calls it without)")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        names.append("scripted by torch.jit")
    if hasattr(unwrapped(model), "peft_config"):
        names.append("with adapters of peft")
    if is_quantized(model):
        names.append("quantized")
    return names


def is_quantized(model: nn.Module) -> bool:
    """Whether some weights are packed integers, which have no gradients."""
    packed = (".quantized", "bitsandbytes")
    by_class = any(part in type(module).__module__ for module in model.modules() for part in packed)
    return by_class or any(not value.is_floating_point() for value in model.parameters())


def plain(dtype: torch.dtype) -> str:
    """ "float32" of torch.float32."""
    return str(dtype).removeprefix("torch.")


def described(tree: Any) -> str:
    """Types and shapes of the tensors of a structure, by name where they have one."""
    parts = [f"{name}{' ' if name else ''}{_leaf(value)}" for name, value in leaves(tree)]
    return ", ".join(parts) or f"an empty {type(tree).__name__}"


def _leaf(value: Any) -> str:
    return f"{plain(value.dtype)} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor or other leaf of a structure, with the path to it as Python would write it."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, f"{name}[{key!r}]" if name else str(key))
    elif isinstance(tree, tuple | list):
        for place, value in enumerate(tree):
            yield from leaves(value, f"{name}[{place}]")
    elif tree is not None:
        yield name, tree
