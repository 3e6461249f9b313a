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

STATISTICS = ("running_mean", "running_var")


def normalizations(model: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}


def statistics_of(model: nn.Module) -> dict[str, Tensor]:
    """Running statistics of every BatchNorm layer by the buffer's name; empty without BatchNorm."""
    return {
        f"{name}.{kind}" if name else kind: getattr(module, kind)
        for name, module in normalizations(model).items()
        for kind in STATISTICS
    }


class Refit:
    """Statistics of given weights over the data, as plain averages over batches.

    Only BatchNorm layers are in training mode, with momentum=None in torch's sense; dropout and all
    else are as in a query. The order of a loader that shuffles is the same for every sample.

    Args:
        network: Around a copy of the model, which is changed while this runs.
        data: The training data.
        most: How many batches to read; None for all.
        seed: Of a loader that shuffles by torch's random state.

    Cost: one forward pass over the data per sample.
    """

    def __init__(self, network: Network, data: Any, *, most: int | None, seed: int) -> None:
        self._network = network
        self._data = data
        self._most = most
        self._seed = seed

    def __call__(self, weights: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
        """Fill tensors shaped like the statistics.

        Raises:
            NumericalError: They are not finite.
        """
        layers = normalizations(self._network.model)
        buffers = dict(into)
        for name, module in layers.items():
            assert module.num_batches_tracked is not None  # so have all that track statistics
            buffers[f"{name}.num_batches_tracked" if name else "num_batches_tracked"] = torch.zeros_like(
                module.num_batches_tracked
            )
        device = self._network.selection.device
        with fenced(self._seed, "swag batchnorm", device=device), self._network.evaluating(), torch.no_grad():
            for module in layers.values():
                module.training, module.momentum = True, None
            for batch in batches(self._data, device):
                if batch.index == self._most:
                    break
                with batch_statistics():
                    self._network.outputs(batch.inputs, weights, buffers)
        for name, value in into.items():
            if not bool(torch.isfinite(value).all()):
                raise NumericalError(f"{name} of a weight sample is not finite; lower SWAG's learning_rate=")


def repeated(model: nn.Module, count: int) -> dict[str, Tensor]:
    """(count, …) copies of a model's statistics, to be overwritten; of a layer that is never called they stay."""
    return {name: value.detach().expand(count, *value.shape).clone() for name, value in statistics_of(model).items()}
