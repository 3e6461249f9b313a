"""Training a small classifier, the same way every time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from slu.errors import DataError, NumericalError, SettingError
from slu.methods.random_state import fenced
from slu.seeds import stream

_CLIP = 1.0  # the paper clips every entry of the gradient here


def train(  # noqa: PLR0913 (five of the eight are keyword-only settings)
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    epochs: int,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Minimise the cross-entropy with Adam, in place; the model is left in evaluation mode.

    Args:
        model: Gives logits (b, t).
        inputs: (n, ...) on the model's device.
        targets: (n,) labels.
        epochs: Passes over the data.
        batch_size: Points a step; the last batch of an epoch may be smaller.
        learning_rate: Adam's.
        seed: Of the order of the points and of the model's own draws (dropout).
        progress: Called with the number of epochs done and the last one's mean loss.

    Returns:
        The mean loss of each epoch.

    Raises:
        NumericalError: The loss left the finite numbers; `partial` holds the losses so far.
    """
    _check(inputs, targets)
    if epochs < 1 or batch_size < 1 or not learning_rate > 0:
        raise SettingError(
            f"epochs and batch_size must be at least 1 and learning_rate above 0; got {epochs}, {batch_size}, "
            f"{learning_rate}"
        )
    order = stream(seed, "training order")
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    losses: list[float] = []
    model.train()
    with fenced(seed, "training", device=inputs.device):
        for epoch in range(1, epochs + 1):
            permuted = torch.randperm(len(inputs), generator=order).to(inputs.device)
            loss = _epoch(model, optimizer, inputs, targets, permuted.split(batch_size))
            if not torch.isfinite(torch.tensor(loss)):
                raise NumericalError(
                    f"the training loss is {loss} in epoch {epoch}; lower the learning rate ({learning_rate}) or "
                    "look for inputs that are not finite",
                    partial=losses,
                )
            losses.append(loss)
            if progress is not None:
                progress(epoch, loss)
    model.eval()
    return losses


def accuracy(model: nn.Module, inputs: Tensor, targets: Tensor, *, batch_size: int = 1024) -> float:
    """Share of the points whose largest logit is the target's; the model's mode is kept."""
    _check(inputs, targets)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            right = sum(
                int((model(x).argmax(1) == y).sum())
                for x, y in zip(inputs.split(batch_size), targets.split(batch_size), strict=True)
            )
    finally:
        model.train(was_training)
    return right / len(inputs)


def _epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
    batches: tuple[Tensor, ...],
) -> float:
    total = 0.0
    for chosen in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(inputs[chosen]), targets[chosen])
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), _CLIP)
        optimizer.step()
        total += loss.item() * len(chosen)
    optimizer.zero_grad(set_to_none=True)
    return total / len(inputs)


def _check(inputs: Tensor, targets: Tensor) -> None:
    if not len(inputs) or targets.shape != (len(inputs),):
        raise DataError(
            f"expected n ≥ 1 inputs and targets (n,); got inputs of shape {tuple(inputs.shape)} and targets of shape "
            f"{tuple(targets.shape)}"
        )
