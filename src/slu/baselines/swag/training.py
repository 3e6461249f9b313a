"""SGD that continues from trained weights, on a copy of the network, and yields at every collected iterate."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from slu.data import Batch, batches, is_one_batch
from slu.errors import DataError, ModelError, NumericalError, SettingError, unknown
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


def check_schedule(schedule: Schedule) -> None:
    if not callable(schedule) and schedule not in SCHEDULES:
        raise unknown("schedule", schedule, [*SCHEDULES, "a function from the step to a factor"])


@dataclass(frozen=True)
class Descent:
    """Settings of the descent.

    Attributes:
        learning_rate, momentum, weight_decay: Of `torch.optim.SGD`.
        schedule: How the learning rate changes.
        collect_every: Batches from one collection to the next; None for once per epoch.
        collections: How many there are.
        seed: Of dropout, and of a loader that shuffles by torch's random state.
    """

    learning_rate: float
    momentum: float
    weight_decay: float
    schedule: Schedule
    collect_every: int | None
    collections: int
    seed: int

    def steps(self, data: Any) -> int | None:
        """How many batches it takes; None where the loader does not say how long an epoch is."""
        cycle = self._cycle(data)
        return None if cycle is None else cycle * self.collections

    def factor(self, step: int, data: Any) -> float:
        """Of the learning rate at a step."""
        if isinstance(self.schedule, str):
            cycle = self._cycle(data)
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

    def _cycle(self, data: Any) -> int | None:
        if self.collect_every is not None:
            return self.collect_every
        if is_one_batch(data):
            return 1
        try:
            return len(data)
        except TypeError:  # also a DataLoader of an IterableDataset
            return None


def copied(network: Network) -> nn.Module:
    """A copy of the module to train, so that the user's stays as it is."""
    try:
        return copy.deepcopy(network.model)
    except Exception as reason:
        raise ModelError(
            f"SWAG trains a copy of the model, and copy.deepcopy cannot make one: {type(reason).__name__}: {reason}. "
            "Give the module what it lacks for that (old-style weight_norm, for example, as a parametrization)"
        ) from reason


class Trainer:
    """SGD on the selected parameters of a copy.

    The weights that move are in `weights`: the copy's own, or, where these are of half precision
    and most steps would round away, in float32 beside them.

    Args:
        network: Around the copy.
        likelihood: Its mean loss over a batch is minimised.
        descent: How.

    Cost: one gradient per batch; the weights, a gradient and the momentum: 3 p numbers.
    """

    def __init__(self, network: Network, likelihood: Likelihood, descent: Descent) -> None:
        self._network = network
        self._likelihood = likelihood
        self._descent = descent
        chosen = set(network.selection.names)
        for name, value in network.model.named_parameters():
            value.requires_grad_(name in chosen)
            value.grad = None
        named = dict(network.model.named_parameters())
        dtype = network.selection.dtype
        self._types = {name: named[name].dtype for name in network.selection.names}
        self.weights: dict[str, Tensor] = {
            name: named[name] if named[name].dtype == dtype else named[name].detach().to(dtype).requires_grad_()
            for name in network.selection.names
        }

    def run(self, data: Any, advance: Callable[[], None]) -> Iterator[float]:
        """Descend; yields at every collection the mean loss since the last one.

        `weights` are then the iterate. To be read inside `training`.

        Raises:
            DataError: No targets, or data that the model or likelihood cannot take.
            NumericalError: The loss left the finite numbers; `partial` holds the mean losses so far.
        """
        descent = self._descent
        losses: list[float] = []
        means: list[float] = []
        step = 0
        for loss in self._losses(data, means):
            if loss is None:
                due = descent.collect_every is None
            else:
                losses.append(loss)
                step += 1
                advance()
                due = descent.collect_every is not None and step % descent.collect_every == 0
            if due:
                means.append(math.fsum(losses) / len(losses))
                losses.clear()
                yield means[-1]
            if len(means) == descent.collections:
                return

    def _losses(self, data: Any, means: list[float]) -> Iterator[float | None]:
        """The loss of every step, and None after each epoch, without end."""
        optimizer = self._optimizer()
        step = 0
        while True:
            for batch in batches(data, self._network.selection.device):
                for group in optimizer.param_groups:
                    group["lr"] = self._descent.learning_rate * self._descent.factor(step, data)
                yield self._step(optimizer, batch, step, means)
                step += 1
            yield None

    @contextmanager
    def training(self) -> Iterator[None]:
        """Training mode, gradients on, autocast off, and a random state that the seed alone decides."""
        device = self._network.selection.device
        with ExitStack() as stack:
            stack.enter_context(fenced(self._descent.seed, "swag training", device=device))
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(torch.autocast(device.type, enabled=False))
            self._network.model.train()
            yield

    def _optimizer(self) -> torch.optim.SGD:
        descent = self._descent
        return torch.optim.SGD(
            self.weights.values(),
            lr=descent.learning_rate,
            momentum=descent.momentum,
            weight_decay=descent.weight_decay,
        )

    def _step(self, optimizer: torch.optim.SGD, batch: Batch, step: int, means: list[float]) -> float:
        if batch.targets is None:
            raise DataError(
                f"SWAG continues the training, which needs targets, but batch {batch.index} has inputs alone; "
                "use a loader of (inputs, targets)"
            )
        stand_ins = {name: value.to(self._types[name]) for name, value in self.weights.items()}
        with batch_statistics():
            outputs = self._network.outputs(batch.inputs, stand_ins)
        loss = self._likelihood.loss(outputs, batch.targets).mean()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise NumericalError(
                f"the loss is {value} at step {step} of SWAG's descent; lower the learning rate "
                f"({self._descent.learning_rate:g}, momentum {self._descent.momentum:g}), which is too large for "
                "the trained weights",
                partial=list(means),
            )
        weights = list(self.weights.values())
        slopes = torch.autograd.grad(loss, weights, allow_unused=True) if loss.requires_grad else [None] * len(weights)
        if all(slope is None for slope in slopes):
            raise ModelError(
                "the loss does not depend on the selected parameters of the model's copy; forward= must call the model "
                "that it is given, and with gradients"
            )
        for weight, slope in zip(weights, slopes, strict=True):
            weight.grad = slope.to_dense() if slope is not None and slope.is_sparse else slope
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value


@contextmanager
def batch_statistics() -> Iterator[None]:
    """BatchNorm's refusal of a single point, in words that say what to do."""
    try:
        yield
    except ValueError as reason:
        if "more than 1 value per channel" not in str(reason):
            raise
        raise DataError(
            f"BatchNorm cannot be trained on a batch of one point ({reason}); use larger batches, and drop_last=True "
            "where the last one has a single point"
        ) from reason
