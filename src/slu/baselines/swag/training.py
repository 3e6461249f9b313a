"""SGD that continues from trained weights, on a copy of the network, and collects iterates."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from slu.data import Batch, batch_count
from slu.errors import DataError, ModelError, NumericalError, SettingError
from slu.gradients import Network
from slu.likelihoods import Likelihood
from slu.seeds import fenced

Schedule: TypeAlias = str | Callable[[int], float]
"""A name in the table, or the factor of the learning rate as a function of the step, counted from 0."""

# From the step's place in a cycle, and the cycle's length, to the factor. A cycle ends in a collection.
SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": lambda *_: 1.0,
    "cosine": lambda place, cycle: 0.5 * (1 + math.cos(math.pi * place / cycle)),
}


@dataclass(frozen=True)
class Descent:
    """Settings of SWAG's SGD.

    Attributes:
        learning_rate, momentum, weight_decay: As in `torch.optim.SGD`.
        schedule: How the learning rate changes.
        collect_every: Batches from one collection to the next; None for once per epoch.
        collections: The number of collections.
        seed: Seed of dropout, and of a loader that shuffles with torch's random state.
    """

    learning_rate: float
    momentum: float
    weight_decay: float
    schedule: Schedule
    collect_every: int | None
    collections: int
    seed: int

    def steps(self, batches: int | None) -> int | None:
        """The number of batches in all, from those of an epoch; None if the loader has no length."""
        cycle = self._cycle(batches)
        return None if cycle is None else cycle * self.collections

    def factor(self, step: int, batches: int | None) -> float:
        """The factor of the learning rate at a step, from the batches of an epoch."""
        if isinstance(self.schedule, str):
            cycle = self._cycle(batches)
            if cycle is None and self.schedule != "constant":
                raise SettingError(
                    f"the schedule {self.schedule!r} must know how many batches an epoch has, and this loader has no "
                    "len(); give collect_every=, the batches from one collected iterate to the next"
                )
            return SCHEDULES[self.schedule](step % (cycle or 1), cycle or 1)
        factor = self.schedule(step)
        if not isinstance(factor, int | float) or not 0 <= factor < math.inf:
            raise SettingError(f"the schedule must give a finite factor of at least 0, at step {step} came {factor!r}")
        return float(factor)

    def _cycle(self, batches: int | None) -> int | None:
        return batches if self.collect_every is None else self.collect_every


def copied(network: Network) -> nn.Module:
    """A copy of the module to train, so that the user's stays as it is."""
    try:
        return copy.deepcopy(network.model)
    except Exception as reason:
        raise ModelError(
            f"SWAG trains a copy of the model, and copy.deepcopy cannot make one: {type(reason).__name__}: {reason}. "
            "Make the module copyable (for example, replace old-style weight_norm by the parametrization)"
        ) from reason


def descend(
    network: Network,
    likelihood: Likelihood,
    descent: Descent,
    data: Any,
    collect: Callable[[Mapping[str, Tensor]], None],
    advance: Callable[[], None],
) -> list[float]:
    """SGD on the selected parameters of a copy, in training mode; the mean loss before each collection.

    The weights of the copy are trained in place, or, if they are of half precision, in float32 copies, because most
    steps would be lost to rounding.

    Args:
        network, likelihood: The copy, and the likelihood with the loss, of which the mean over a batch is minimised.
        descent, data: The settings and the training data.
        collect: Called at every collection with the iterate, the weights by name.
        advance: Called after every step.

    Raises:
        DataError: No targets, or data that the model or likelihood rejects.
        ModelError: The loss does not depend on the weights.
        NumericalError: The loss is not finite; `partial` holds the mean losses so far.

    Cost: one gradient per batch; the weights, a gradient and the momentum: 3 p numbers.
    """
    device, weights = network.selection.device, _trainable(network)
    optimizer = torch.optim.SGD(
        weights.values(), lr=descent.learning_rate, momentum=descent.momentum, weight_decay=descent.weight_decay
    )
    count = batch_count(data, network.reader)
    losses: list[float] = []
    means: list[float] = []
    step = 0
    network.model.train()
    with (
        fenced(descent.seed, "swag training", device=device),
        torch.inference_mode(False),
        torch.enable_grad(),
        # Without its cache: an autocast of the model's own, inside of this one, would keep the first step's weights.
        torch.autocast(device.type, enabled=False, cache_enabled=False),
    ):
        while True:
            for batch in chain(network.batches(data), [None]):  # None ends an epoch
                if batch is None:
                    due = descent.collect_every is None
                else:
                    for group in optimizer.param_groups:
                        group["lr"] = descent.learning_rate * descent.factor(step, count)
                    loss = _mean_loss(network, likelihood, weights, batch)
                    losses.append(float(loss.detach()))
                    if not math.isfinite(losses[-1]):
                        raise NumericalError(
                            f"the loss is {losses[-1]} at step {step} of SWAG's descent; lower the learning rate "
                            f"({descent.learning_rate:g}, momentum {descent.momentum:g}), which is too large for the "
                            "trained weights",
                            partial=means,
                        )
                    _set_gradients(list(weights.values()), loss)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                    step += 1
                    advance()
                    due = descent.collect_every is not None and step % descent.collect_every == 0
                if due:
                    means.append(math.fsum(losses) / len(losses))
                    losses.clear()
                    collect(weights)
                if len(means) == descent.collections:
                    return means


def _trainable(network: Network) -> dict[str, Tensor]:
    """The selected parameters by name, at least in float32; all others of the module are frozen."""
    named, dtype = dict(network.model.named_parameters()), network.selection.dtype
    chosen = set(network.selection.names)
    for name, value in named.items():
        value.requires_grad_(name in chosen)
        value.grad = None
    return {
        name: named[name] if named[name].dtype == dtype else named[name].detach().to(dtype).requires_grad_()
        for name in network.selection.names
    }


def typed(values: Mapping[str, Tensor], network: Network) -> dict[str, Tensor]:
    """Each in its parameter's own type: half-precision weights have iterates and moments in float32."""
    own = network.parameters()
    return {name: value.to(own[name].dtype) for name, value in values.items()}


def _mean_loss(network: Network, likelihood: Likelihood, weights: Mapping[str, Tensor], batch: Batch) -> Tensor:
    if batch.targets is None:
        raise DataError(
            f"SWAG continues the training, which needs targets, but batch {batch.index} has inputs alone; "
            "use a loader of (inputs, targets)"
        )
    with batch_statistics():
        outputs = network.outputs(batch.inputs, typed(weights, network))
    return likelihood.loss(outputs, batch.targets).mean()


def _set_gradients(weights: list[Tensor], loss: Tensor) -> None:
    gradients = torch.autograd.grad(loss, weights, allow_unused=True) if loss.requires_grad else [None] * len(weights)
    if all(gradient is None for gradient in gradients):
        raise ModelError(
            "the loss does not depend on the selected parameters of the model's copy; forward= must call the model "
            "that it is given, and with gradients"
        )
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


@contextmanager
def batch_statistics() -> Iterator[None]:
    """Replace BatchNorm's error about a single point by one that says what to do."""
    try:
        yield
    except ValueError as reason:
        if "more than 1 value per channel" not in str(reason):
            raise
        raise DataError(
            f"BatchNorm cannot be trained on a batch of one point ({reason}); use larger batches, and drop_last=True "
            "where the last one has a single point"
        ) from reason
