"""How good a trained network is on points it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from slu.likelihoods import Classification, Likelihood, Multilabel, resolve
from slu_experiments.data import Source, batches

# How many of a batch's predictions are right, and how many there are.
_RIGHT: dict[type, Callable[[Tensor, Tensor], Tensor]] = {
    Classification: lambda outputs, targets: outputs.argmax(1) == targets,
    Multilabel: lambda outputs, targets: (outputs > 0) == (targets.reshape(outputs.shape) > 0.5),
}


@dataclass(frozen=True)
class Evaluation:
    """A network's mean loss, and the share of its predictions that are right where they can be that.

    Attributes:
        points: How many it was evaluated on.
        loss: The likelihood's mean.
        accuracy: Of classes, or of single attributes of all points; None in a regression.
    """

    points: int
    loss: float
    accuracy: float | None


def evaluate(
    model: nn.Module, source: Source, likelihood: str | Likelihood = "classification", *, batch_size: int = 128
) -> Evaluation:
    """Loss and accuracy of a model on a source, in evaluation mode; the model's own mode is kept."""
    likelihood = resolve(likelihood)
    right = _RIGHT.get(type(likelihood))
    like = next(model.parameters())
    was_training = model.training
    model.eval()
    total, hits, judged = 0.0, 0, 0
    try:
        with torch.no_grad():
            for inputs, targets in batches(source, batch_size):
                outputs = model(inputs.to(like))
                targets = targets.to(like.device)
                total += float(likelihood.loss(outputs, targets).double().sum())
                if right is not None:
                    correct = right(outputs, targets)
                    hits, judged = hits + int(correct.sum()), judged + correct.numel()
    finally:
        model.train(was_training)
    return Evaluation(len(source), total / len(source), hits / judged if right is not None else None)


def accuracy(model: nn.Module, source: Source, *, batch_size: int = 128) -> float:
    """Share of the points at which the largest output is the target's; the model's mode is kept."""
    share = evaluate(model, source, "classification", batch_size=batch_size).accuracy
    assert share is not None  # classes are right or wrong
    return share
