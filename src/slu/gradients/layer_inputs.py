"""The inputs of a network's layers in a forward pass: one vector per example and layer, averaged over positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from slu.data.batches import Inputs, take, tensors
from slu.gradients.network import Network

_CHANNELS_FIRST = (nn.modules.conv._ConvNd, nn.BatchNorm1d, nn.AdaptiveAvgPool1d)
_WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase)  # also where a parametrization holds the weight
_SLACK = 0.01, 1e-3  # of a value and of the largest one, as of `Network.check_pointwise`


@final
class LayerInputs:
    """A context manager that records the inputs of layers while the network is called once inside of it.

    A layer is a module with a weight of two or more dimensions of its own; embeddings, whose inputs are numbers of
    words, have none to record. Modules that take the same tensor count once. What is computed without modules
    (`torch.nn.functional` on parameters) is not recorded.

    Args:
        network: The network that is called.
        names: Of the modules, as `named_modules` has them; None for all layers, until the first call.

    Attributes:
        names: Of the layers, in the order of their first call; None before it.
        values: (b, d) by layer, averaged over positions and calls; set by `finish`.

    Cost: a mean over positions per layer. Hooks are removed at the end, also after an exception.
    """

    def __init__(self, network: Network, names: Sequence[str] | None = None) -> None:
        self._network = network
        self.names: tuple[str, ...] | None = None
        self._modules = {name: module for name, module in network.model.named_modules() if _is_layer(module)}
        self.values: dict[str, Tensor] = {}
        self._calls: dict[str, list[Tensor]] = {}
        self._held: list[tuple[Tensor, int]] = []
        self._handles: list[RemovableHandle] = []
        if names is not None:
            self.restrict(names)

    def __enter__(self) -> LayerInputs:
        self._calls, self._held = {}, []
        for name in self._modules if self.names is None else self.names:
            module = self._modules[name]
            self._handles.append(module.register_forward_pre_hook(partial(self._note, name), with_kwargs=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._handles:
            self._handles.pop().remove()

    def finish(self, inputs: Inputs, points: int) -> None:
        """Set `values` after a call on the inputs of so many points; the first time also choose the layers.

        Kept are those whose input for the last point is the same if that point is alone: others have something else
        than points along their first dimension, or depend on the rest of the batch.

        Cost: the first time a forward pass of one point.
        """
        self.values = self._averaged(points)
        if self.names is not None:
            return
        self._held, together = [], self.values
        self.restrict(list(together))
        with torch.no_grad():
            self._network.outputs(take(inputs, slice(points - 1, points), points), watch=self)
        alone = self._averaged(1)
        self.values = {name: each for name, each in together.items() if name in alone and _close(alone[name], each)}
        self.restrict(list(self.values))

    def _averaged(self, points: int) -> dict[str, Tensor]:
        """(b, d) by layer, of the layers that have a row per point."""
        means = {name: calls[0] if len(calls) == 1 else _mean(calls) for name, calls in self._calls.items()}
        self._calls = {}
        return {name: mean for name, mean in means.items() if mean is not None and len(mean) == points}

    def restrict(self, names: Sequence[str]) -> None:
        """Record these layers alone from now on, as far as the network has them."""
        self.names = tuple(name for name in names if name in self._modules)

    @torch.no_grad()
    def _note(self, name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        value = next(iter(tensors((args, kwargs))), None)
        if value is None or not value.is_floating_point() or value.dim() < 2 or not value.numel():
            return
        if self.names is None:
            if name not in self._calls and any(_same(value, *other) for other in self._held):
                return
            # Held, because memory that is freed may be given to another tensor.
            self._held.append((value, value._version))
        self._calls.setdefault(name, []).append(pooled(module, value.detach()))


def pooled(module: nn.Module, value: Tensor) -> Tensor:
    """(b, d) of a module's input, averaged over positions: (b, T, d) over T, images (b, C, h, w) over h and w.

    Numerics: at least float32.
    """
    value = value.to(torch.promote_types(value.dtype, torch.float32))
    if value.dim() < 3:
        return value.reshape(len(value), -1).clone()  # the module may change it in place
    features_last = isinstance(module, nn.Linear | nn.LayerNorm) or value.dim() == 3
    if isinstance(module, _CHANNELS_FIRST) or not features_last:
        return value.flatten(2).mean(2)
    return value.flatten(1, -2).mean(1)


def expected_sizes(model: nn.Module) -> dict[str, int]:
    """d of every layer by name, read off its weights; for estimates, because only a call shows the inputs."""
    sizes = {}
    for name, module in model.named_modules():
        if _is_layer(module):
            given = [getattr(module, each, None) for each in ("in_features", "in_channels", "input_size")]
            shapes = (value.shape for value in module._parameters.values() if value is not None and value.dim() > 1)
            known = [each for each in given if isinstance(each, int)]
            sizes[name] = known[0] if known else max((max(shape[:2]) for shape in shapes), default=1)
    return sizes


def _is_layer(module: nn.Module) -> bool:
    # Scripted modules are called without hooks, and tables with numbers of their rows.
    if isinstance(module, torch.jit.ScriptModule | nn.Embedding | nn.EmbeddingBag):
        return False
    own = module._parameters.values()
    weights = (value is not None and value.is_floating_point() and value.dim() > 1 for value in own)
    return isinstance(module, _WEIGHTED) or any(weights)


def _same(one: Tensor, other: Tensor, version: int) -> bool:
    """Whether two tensors are the same numbers in memory, which were of that version."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one._version == version
    )


def _mean(calls: list[Tensor]) -> Tensor | None:
    """Over the calls of a module; None where their shapes differ."""
    return torch.stack(calls).mean(0) if len({call.shape for call in calls}) == 1 else None


def _close(alone: Tensor, together: Tensor) -> bool:
    share, of_largest = _SLACK
    beside = together[-1:]
    slack = share * beside.abs() + of_largest * float(together.abs().max())
    return alone.shape == beside.shape and not bool(((alone - beside).abs() > slack).any())
