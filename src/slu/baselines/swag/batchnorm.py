"""BatchNorm's running statistics for weights that were never trained: computed again from the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from slu.baselines.swag.training import batch_statistics
from slu.errors import NumericalError
from slu.gradients import Network
from slu.seeds import fenced


def _buffers(model: nn.Module, *kinds: str) -> dict[str, Tensor]:
    """Buffers of these kinds of every BatchNorm layer, by name."""
    layers = {name for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    wanted = {f"{layer}.{kind}" if layer else kind for layer in layers for kind in kinds}
    return {name: value for name, value in model.named_buffers() if name in wanted}


def statistics_of(model: nn.Module) -> dict[str, Tensor]:
    """Running statistics of every BatchNorm layer by the buffer's name; empty without BatchNorm."""
    return _buffers(model, "running_mean", "running_var")


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
        data, weights: The training data, and the weights by name.
        into: Tensors shaped like `statistics_of`.
        most: How many batches to read; None for all.
        seed: Of a loader that shuffles by torch's random state.

    Raises:
        NumericalError: The statistics are not finite.

    Cost: one forward pass over the data.
    """
    device = network.selection.device
    counts = _buffers(network.model, "num_batches_tracked")
    buffers = {**into, **{name: torch.zeros_like(value) for name, value in counts.items()}}
    with fenced(seed, "swag batchnorm", device=device), network.evaluating(), torch.no_grad():
        for module in network.model.modules():
            if isinstance(module, _BatchNorm):
                module.training, module.momentum = True, None
        for batch in network.batches(data):
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
