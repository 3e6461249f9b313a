"""BatchNorm's running statistics for weights that were never trained: computed again from the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from slu.baselines.swag.training import batch_statistics
from slu.data import batches
from slu.errors import NumericalError
from slu.gradients import Network
from slu.seeds import fenced


def _buffer(module: str, kind: str) -> str:
    """A buffer's name; that of the model itself has no module before it."""
    return f"{module}.{kind}" if module else kind


def normalizations(model: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}


def statistics_of(model: nn.Module) -> dict[str, Tensor]:
    """Running statistics of every BatchNorm layer by the buffer's name; empty without BatchNorm."""
    return {
        _buffer(name, kind): getattr(module, kind)
        for name, module in normalizations(model).items()
        for kind in ("running_mean", "running_var")
    }


def refit(
    network: Network,
    data: Any,
    weights: Mapping[str, Tensor],
    into: Mapping[str, Tensor],
    *,
    most: int | None,
    seed: int,
) -> None:
    """Fill `into` with the statistics of given weights over the data, as plain averages over batches.

    Only BatchNorm layers are in training mode, with momentum=None in torch's sense; dropout and all
    else are as in a query. The order of a loader that shuffles is the same for every sample.

    Args:
        network: Around a copy of the model, which is changed while this runs.
        data: The training data.
        weights: By name.
        into: Tensors shaped like `statistics_of`.
        most: How many batches to read; None for all.
        seed: Of a loader that shuffles by torch's random state.

    Raises:
        NumericalError: The statistics are not finite.

    Cost: one forward pass over the data.
    """
    buffers, device = dict(into), network.selection.device
    layers = normalizations(network.model)
    for name, module in layers.items():
        assert module.num_batches_tracked is not None  # so have all that track statistics
        buffers[_buffer(name, "num_batches_tracked")] = torch.zeros_like(module.num_batches_tracked)
    with fenced(seed, "swag batchnorm", device=device), network.evaluating(), torch.no_grad():
        for module in layers.values():
            module.training, module.momentum = True, None
        for batch in batches(data, device):
            if batch.index == most:
                break
            with batch_statistics():
                network.outputs(batch.inputs, weights, buffers)
    for name, value in into.items():
        if not bool(torch.isfinite(value).all()):
            raise NumericalError(f"{name} of a weight sample is not finite; lower SWAG's learning_rate=")


def repeated(model: nn.Module, count: int) -> dict[str, Tensor]:
    """(count, …) copies of a model's statistics, to be overwritten; of a layer that is never called they stay."""
    return {name: value.detach().expand(count, *value.shape).clone() for name, value in statistics_of(model).items()}
