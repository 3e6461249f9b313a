"""Calling a model: how by default, which tensor is taken of what it returns, and what its exceptions mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from slu.data import BatchReader
from slu.data.structure import Examples, Inputs, counts_points, leaves, tensors
from slu.errors import DataError, ModelCallError, ModelError

_KEYS = ("logits", "out")
_CURE = "Use checkpoint(…, use_reentrant=False), or turn it off while scores are computed"
_CHECKPOINTING = ("use_reentrant", "None of the inputs have requires_grad=True")


def call(model: nn.Module, inputs: Inputs) -> Any:
    """Call a model by default: a dict by keyword, a tuple or list by position."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def taken(returned: Any) -> tuple[Tensor, str | None]:
    """The outputs in what a model returned, and in words which part they are; None for a tensor itself.

    Raises:
        DataError: There is no tensor in it.
    """
    if isinstance(returned, Tensor):
        return returned, None
    if isinstance(logits := getattr(returned, "logits", None), Tensor):
        return logits, "its .logits"
    if isinstance(returned, Mapping):
        for key in _KEYS:
            if isinstance(returned.get(key), Tensor):
                return returned[key], f"its entry {key!r}"
    if isinstance(returned, Mapping):
        parts = {repr(key): each for key, each in returned.items() if isinstance(each, Tensor)}
    else:
        places = enumerate(returned) if isinstance(returned, tuple | list) else ()
        parts = {f"at place {place}": each for place, each in places if isinstance(each, Tensor)}
    # A loss, a single number, and the predicted classes, integers, may stand before the outputs.
    outputs = [where for where, each in parts.items() if each.dim() and each.is_floating_point()]
    for where in [*outputs, *parts]:
        which = "tensor" if where == next(iter(parts)) else "floating-point tensor with rows"
        return parts[where], f"its first {which}, {where}"
    raise DataError(
        f"the model returned {_described(returned)}, in which no tensor of outputs was found: a tensor is needed, an "
        "object with .logits, or a dict, tuple or list with a tensor in it; select it with "
        "forward=lambda model, inputs: model(inputs).scores, for example"
    )


def call_error(reason: Exception, model: nn.Module, inputs: Inputs, reader: BatchReader) -> ModelCallError:
    """The error for an exception of the model: on which batch, with which inputs, why; and a remedy if one is known."""
    where = "a batch" if reader.index is None else f"batch {reader.index} while {reader.purpose}"
    first = str(reason).strip().partition("\n")[0]
    cause = f"{type(reason).__name__}: {first}" if first else type(reason).__name__
    hint = next(_hints(f"{type(reason).__name__}: {reason}", model, inputs), None)
    given = f"called with {_arguments(inputs, reader.names)}"
    if reader.own_forward:
        given = f"where forward= was given {_arguments(inputs, ())}"
        given += f", and {reader.apart} of the batch was read as targets" if reader.apart else ""
    return ModelCallError(f"the model failed on {where}, {given}: {cause}", hint)


def check_recorded(outputs: Tensor) -> None:
    """Refuse outputs of reentrant checkpoints: these call the model again, outside of here, with its own parameters.

    Raises:
        ModelError: The graph has such a step.
    """
    steps, seen = [outputs.grad_fn], set()
    while steps:
        step = steps.pop()
        if step is None or step in seen:
            continue
        seen.add(step)
        if step.name() == "CheckpointFunctionBackward":
            raise ModelError(f"the model has reentrant activation checkpoints, which give no gradients here. {_CURE}")
        steps += [each for each, _ in step.next_functions]


def check_rows(outputs: Tensor, inputs: Inputs) -> None:
    """Refuse outputs that are not one row per point.

    Raises:
        DataError: The message says what a single point needs.
    """
    if len(outputs) and any(counts_points(leaf, len(outputs)) for leaf in leaves(inputs)):
        return
    shapes = [tuple(tensor.shape) for tensor in tensors(inputs)]
    raise DataError(
        f"the model gave {len(outputs)} rows of outputs for inputs of the shapes {shapes}; one row per point is "
        "needed, and points along the first dimension of the inputs, which must be tensors. A single point is passed "
        "as a batch of one, x[None]; a list or data set of points goes into a DataLoader"
    )


def no_history(outputs: Tensor) -> ModelError:
    """The error for outputs in which autograd recorded no parameter at all."""
    if not outputs.is_floating_point():
        return ModelError(
            f"the model's outputs are {_dtype(outputs)}, which cannot be differentiated; return the logits they are "
            "made of, or select them with forward="
        )
    return ModelError(
        "the model's outputs have no history: autograd recorded no parameter in them, so there is nothing to "
        "differentiate. Remove torch.no_grad(), torch.inference_mode(), detach() or .data from the model's forward, "
        "and from forward="
    )


def _hints(text: str, model: nn.Module, inputs: Inputs) -> Iterator[str]:
    """What to do about known causes, which the model and the inputs must show as well; the first counts."""
    weights = next((value for value in model.parameters() if value.is_floating_point()), None)
    if any(words in text for words in _CHECKPOINTING):
        yield f"If this is reentrant activation checkpointing: {_CURE}"
    if "nference tensor" in text:
        yield (
            "A tensor of the model was made in inference mode and cannot be differentiated; make it outside of "
            "torch.inference_mode(), or clone it"
        )
    if "has no attribute 'module'" in text or "has no attribute '_orig_mod'" in text:
        yield (
            "Of a wrapped model, forward= is given the module inside of its wrappers: write model in place of "
            "model.module and model._orig_mod"
        )
    of_types = any(words in text for words in ("dtype", "scalar type", "Input type ("))
    whole = any(not (value.is_floating_point() or value.is_complex()) for value in model.parameters())
    if "quantized::" in text or "QuantizedC" in text or (of_types and whole):
        yield (
            "Integer (quantized) weights cannot be differentiated: load the model in float32 or bfloat16, or select "
            "parameters that are not quantized with params="
        )
    if weights is not None and ("same device" in text or "expected device" in text):
        devices = {str(tensor.device) for tensor in tensors(inputs)}
        yield (
            f"The inputs are on {', '.join(sorted(devices)) or 'no device'} and the weights on {weights.device}; move "
            "tensors that the model makes or keeps outside of its buffers to the device of its weights"
        )
    if "'indices'" in text and "Long, Int" in text:
        yield "An embedding takes whole numbers and was given others: convert the indices in the loader, ids.long()"
    if weights is not None and of_types:
        yield from _types_hint(model, weights, inputs)
    if "index out of range in self" in text:
        tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
        largest = _largest_index(inputs)
        yield (
            "An index is beyond an embedding's table"
            + ("" if largest is None else f": integer inputs go up to {largest}")
            + (f", the tables have {', '.join(map(str, tables))} rows" if tables else "")
            + ". Look at the vocabulary, at padding by -1, and at the longest sequence that the model allows"
        )


def _types_hint(model: nn.Module, weights: Tensor, inputs: Inputs) -> Iterator[str]:
    """The types of inputs that are not the weights', but for the indices of embeddings and yes or no."""
    indices = any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in model.modules())
    others = {
        _dtype(tensor)
        for tensor in tensors(inputs)
        if tensor.dtype not in (weights.dtype, torch.bool)
        and (tensor.is_floating_point() or tensor.is_complex() or not indices)
    }
    if any(name.startswith("complex") for name in others):
        yield (
            f"The weights are {_dtype(weights)} and the inputs {', '.join(sorted(others))}: give real and imaginary "
            "parts as numbers of their own, torch.view_as_real(x)"
        )
    elif others:
        yield (
            f"The weights are {_dtype(weights)} and the inputs {', '.join(sorted(others))}: convert the inputs in the "
            f"loader, x.to(torch.{_dtype(weights)}), or the model"
        )


def _largest_index(inputs: Inputs) -> int | None:
    indices = [each for each in tensors(inputs) if not (each.is_floating_point() or each.is_complex())]
    try:
        return max((int(each.max()) for each in indices if each.numel() and each.dtype != torch.bool), default=None)
    except RuntimeError:  # inside of vmap numbers cannot be read
        return None


def _arguments(inputs: Inputs, names: tuple[str, ...]) -> str:
    if isinstance(inputs, Mapping):
        return ", ".join(f"{key}={_described(value)}" for key, value in inputs.items())
    if isinstance(inputs, tuple | list) and not isinstance(inputs, Examples):
        known = [f"{name}=" for name in names] + [""] * len(inputs)
        return ", ".join(name + _described(each) for name, each in zip(known, inputs, strict=False))
    return f"{names[0]}={_described(inputs)}" if names else _described(inputs)


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{_dtype(value)} {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"{type(value).__name__} of {', '.join(f'{key!r}: {_described(each)}' for key, each in value.items())}"
    if isinstance(value, Examples):
        return f"a list of {len(value)} {type(value[0]).__name__ if value else 'elements'}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {', '.join(map(_described, value)) or 'nothing'}"
    return type(value).__name__


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
