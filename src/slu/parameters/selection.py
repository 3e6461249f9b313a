"""A module's chosen parameters as one flat vector."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from slu.errors import ModelError, SelectionError
from slu.parameters.choice import Choice, check_real, chosen_names
from slu.parameters.fingerprint import MODEL_IN_USE
from slu.parameters.wrappers import unwrapped


@dataclass(frozen=True)
class Segment:
    """One parameter tensor's place in the flat vector: coordinates `start` to `stop`."""

    name: str
    start: int
    stop: int
    shape: torch.Size


SMALL_TENSOR = 4096
"""Numbers from which a tensor is scaled by rows and columns. On regressions by networks of 50 units, whose matrices are
smaller, that would lose 0.01 to 0.03 of the AUROC, and save next to nothing."""


def matrix_shape(shape: Sequence[int], *, least: int = 0) -> tuple[int, int]:
    """(o, i) of a tensor seen as a matrix: its first dimension and the product of the others, without those of size 1.

    Args:
        shape: The tensor's.
        least: Numbers below which it is seen as a vector instead.

    >>> matrix_shape((16, 6, 5, 5)), matrix_shape((32, 1, 3, 3)), matrix_shape((84,)), matrix_shape((10, 1))
    ((16, 150), (32, 9), (1, 84), (1, 10))
    """
    sizes = [size for size in shape if size != 1]
    numbers = math.prod(sizes)
    return (sizes[0], numbers // sizes[0]) if len(sizes) > 1 and numbers >= least else (1, numbers)


@dataclass(frozen=True)
class Selection:
    """An ordered choice of parameters: names, shapes and places, no values.

    The order is that of `named_parameters()`. A tensor that a module uses under two names is
    one segment, under its first name. `dtype` is the type of flat vectors: the parameters' own,
    but never less than float32, because sums over a data set lose too much in half precision.
    """

    segments: tuple[Segment, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def count(self) -> int:
        """p, the length of the flat vector."""
        return self.segments[-1].stop

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(segment.name for segment in self.segments)

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """(o, i) of every tensor seen as a matrix."""
        return tuple(matrix_shape(segment.shape) for segment in self.segments)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of a flat (p,) vector, shaped like the parameters; nothing is copied."""
        if vector.shape != (self.count,):
            raise SelectionError(
                f"a flat vector of {self.count} parameters is needed, got the shape {tuple(vector.shape)}"
            )
        return {segment.name: vector[segment.start : segment.stop].view(segment.shape) for segment in self.segments}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One new (p,) vector from tensors shaped like the parameters."""
        return torch.cat([tensors[segment.name].reshape(-1).to(self.dtype) for segment in self.segments])

    def values(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's selected parameters by name: they share storage but carry no history."""
        with MODEL_IN_USE:
            named = dict(model.named_parameters())
        return {name: named[name].detach() for name in self.names}


def select(model: nn.Module, params: Choice = None) -> Selection:
    """Choose parameters of a module.

    Args:
        model: Any module; of a wrapped one the parameters of the module inside, by their names there.
        params: None for every trainable parameter; a module of the model; a name, the beginning of one
            (`"encoder.layer.11"`, `"head"`) or a glob (`"*.bias"`); "last" for the last layer; "lora" for adapters; a
            predicate of name and parameter; or a list of any of these. Frozen parameters are left out, unless an exact
            name or a predicate chooses them.

    Raises:
        SelectionError: Nothing was selected, or only frozen or quantized parameters were; the message says which.
        ModelError: A selected parameter has no values yet, values that are not finite, or a part of them only.
    """
    model = unwrapped(model)
    with MODEL_IN_USE:
        return _lay_out(chosen_names(model, params), dict(model.named_parameters()))


def _lay_out(names: list[str], named: Mapping[str, nn.Parameter]) -> Selection:
    segments: list[Segment] = []
    start = 0
    for name in names:
        value = named[name]
        _check_values(name, value)
        segments.append(Segment(name, start, start + value.numel(), value.shape))
        start += value.numel()
    if start == 0:
        raise SelectionError(f"the selected parameters {names} hold no numbers")
    devices = {named[name].device for name in names}
    if len(devices) > 1:
        raise ModelError(f"the selected parameters are on {sorted(map(str, devices))}; move the model to one device")
    dtype = reduce(torch.promote_types, [named[name].dtype for name in names], torch.float32)
    return Selection(tuple(segments), dtype, devices.pop())


def _check_values(name: str, value: nn.Parameter) -> None:
    if isinstance(value, nn.UninitializedParameter):
        raise ModelError(f"{name} has no values yet; run one batch through the lazy module first")
    check_real(name, value)
    if not value.is_meta and not bool(torch.isfinite(value.detach()).all()):
        raise ModelError(f"{name} holds NaN or infinity; the network was not trained to finite weights")
