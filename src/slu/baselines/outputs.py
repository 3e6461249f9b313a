"""Scores of the outputs alone: nothing is fitted and nothing is kept. What everything else must beat.

| method | reading | score of outputs f with probabilities π = softmax(f) |
|---|---|---|
| MaxLogit | max-logit | -max f |
| MaxProbability | max-probability | 1 - max π |
| Entropy | entropy | -Σ π log π |
| Energy | energy | -log Σ exp f |

Each class is settings alone and shares everything with the others by the functions below.

Numerics: float64 throughout, and probabilities of all but the likeliest class are added up instead of
taking 1 - max π, which is 0 for every input that a float32 network with a lead of 17 is sure about. A
lead of 700 keeps scores apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slu.artifacts import artifact as artefact
from slu.baselines.predictions import entropy, rest, softmax
from slu.budgets import Cost
from slu.core.scoring import outputs_of, score_batches
from slu.data import Batch, batches
from slu.errors import DataError, ModelError, unknown
from slu.gradients import Forward, Network
from slu.likelihoods import Classification
from slu.parameters import fingerprint, select

NO_COST = Cost(artefact=0, fitting=0, querying=0, passes=0)


@dataclass(frozen=True)
class Rule:
    """The name of a reading, and (b,) scores from (b, t) outputs in float64."""

    reading: str
    score: Callable[[Tensor], Tensor]


RULES = {
    "MaxLogit": Rule("max-logit", lambda outputs: -outputs.amax(1)),
    "MaxProbability": Rule("max-probability", lambda outputs: rest(softmax(outputs))[:, 0]),
    "Entropy": Rule("entropy", lambda outputs: entropy(softmax(outputs))[:, 0]),
    "Energy": Rule("energy", lambda outputs: -outputs.logsumexp(1)),
}
"""By the class that stands for it."""


class MaxLogit:
    """The largest output, negated.

    Args:
        model: Any classifier with outputs (b, t), t ≥ 2. It is never changed.
        forward: How to call the model on the inputs of a batch, forward(model, inputs).

    Cost: a forward pass an input; nothing is kept.
    """

    def __init__(self, model: nn.Module, *, forward: Forward | None = None) -> None:
        self.network = _network(model, forward)

    def cost(self, outputs: int | None = None, batch: int | Any = 1) -> Cost:
        """Nothing beyond the model and activations."""
        del outputs, batch
        return NO_COST

    def fit(self, loader: Any = None, *, progress: bool | None = None) -> OutputScore:
        """The score; the first batch of a loader, where one is given, is checked."""
        del progress
        return _fitted(self, loader)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module, *, forward: Forward | None = None) -> OutputScore:
        """A score that was saved, for the very network; errors as of `SLU.load`."""
        return _loaded(cls, path, model, forward)


class MaxProbability:
    """One minus the largest softmax probability, which is the sum of the others.

    Args:
        model: Any classifier with outputs (b, t), t ≥ 2. It is never changed.
        forward: How to call the model on the inputs of a batch, forward(model, inputs).

    Cost: a forward pass an input; nothing is kept.
    """

    def __init__(self, model: nn.Module, *, forward: Forward | None = None) -> None:
        self.network = _network(model, forward)

    def cost(self, outputs: int | None = None, batch: int | Any = 1) -> Cost:
        """Nothing beyond the model and activations."""
        del outputs, batch
        return NO_COST

    def fit(self, loader: Any = None, *, progress: bool | None = None) -> OutputScore:
        """The score; the first batch of a loader, where one is given, is checked."""
        del progress
        return _fitted(self, loader)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module, *, forward: Forward | None = None) -> OutputScore:
        """A score that was saved, for the very network; errors as of `SLU.load`."""
        return _loaded(cls, path, model, forward)


class Entropy:
    """The entropy of the softmax, in nats.

    Args:
        model: Any classifier with outputs (b, t), t ≥ 2. It is never changed.
        forward: How to call the model on the inputs of a batch, forward(model, inputs).

    Cost: a forward pass an input; nothing is kept.
    """

    def __init__(self, model: nn.Module, *, forward: Forward | None = None) -> None:
        self.network = _network(model, forward)

    def cost(self, outputs: int | None = None, batch: int | Any = 1) -> Cost:
        """Nothing beyond the model and activations."""
        del outputs, batch
        return NO_COST

    def fit(self, loader: Any = None, *, progress: bool | None = None) -> OutputScore:
        """The score; the first batch of a loader, where one is given, is checked."""
        del progress
        return _fitted(self, loader)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module, *, forward: Forward | None = None) -> OutputScore:
        """A score that was saved, for the very network; errors as of `SLU.load`."""
        return _loaded(cls, path, model, forward)


class Energy:
    """Minus the logarithm of the summed exponentials of the outputs.

    Args:
        model: Any classifier with outputs (b, t), t ≥ 2. It is never changed.
        forward: How to call the model on the inputs of a batch, forward(model, inputs).

    Cost: a forward pass an input; nothing is kept.
    """

    def __init__(self, model: nn.Module, *, forward: Forward | None = None) -> None:
        self.network = _network(model, forward)

    def cost(self, outputs: int | None = None, batch: int | Any = 1) -> Cost:
        """Nothing beyond the model and activations."""
        del outputs, batch
        return NO_COST

    def fit(self, loader: Any = None, *, progress: bool | None = None) -> OutputScore:
        """The score; the first batch of a loader, where one is given, is checked."""
        del progress
        return _fitted(self, loader)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module, *, forward: Forward | None = None) -> OutputScore:
        """A score that was saved, for the very network; errors as of `SLU.load`."""
        return _loaded(cls, path, model, forward)


class OutputScore:
    """A score of outputs that is ready: call it on inputs; larger means less sure.

    Attributes:
        method: The method it is of, one of the four.
    """

    def __init__(
        self, method: MaxLogit | MaxProbability | Entropy | Energy, weights: dict[str, str] | None = None
    ) -> None:
        self.method = method
        self._rule = RULES[type(method).__name__]
        # Now, not when it is saved: by then the network may have been trained further.
        self._weights = weights or fingerprint(method.network.model)

    @property
    def readings(self) -> tuple[str, ...]:
        """The one name that `reading=` takes."""
        return (self._rule.reading,)

    def __call__(self, data: Any, *, reading: str | None = None, progress: bool | None = None) -> Tensor:
        """(b,) scores in float64 of one batch, or of every batch of a loader in its order.

        Args:
            data: Inputs (a tensor or dict), an (inputs, targets) pair, or a loader of them.
            reading: The score's own name, or nothing.
            progress: Whether to show a bar for a loader; by default in a terminal only.
        """
        if reading not in (None, self._rule.reading):
            raise unknown("reading", reading, self.readings)

        def score(batch: Batch) -> Tensor:
            return self._rule.score(_outputs(self.method.network, batch))

        return score_batches(self.method.network, data, score, cost=lambda: NO_COST, progress=progress)

    def save(self, path: str | Path) -> None:
        """Write a header to one file, atomically, tied to the exact weights; there are no tensors."""
        method = self.method
        name = type(method).__name__
        # Outputs are read as logits of classes, whatever loss they were trained with.
        artefact.save(path, name, method.network, Classification(), {}, {}, weights=self._weights)


def _network(model: Any, forward: Forward | None) -> Network:
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    # Nothing is differentiated, so frozen parameters count as well; the selection tells the device.
    return Network(model, select(model, lambda _, value: value.is_floating_point()), forward)


def _outputs(network: Network, batch: Batch) -> Tensor:
    """(b, t) outputs in float64; t ≥ 2."""
    outputs = outputs_of(network, batch.inputs, batch.index)
    if outputs.shape[1] < 2:
        raise DataError(
            "a score of the outputs needs those of at least two classes, the model has one output a point; stack a "
            "single logit f as (0, f) with forward=, or score regression by the variance of a DeepEnsemble"
        )
    return outputs.double()


def _fitted(method: MaxLogit | MaxProbability | Entropy | Energy, loader: Any) -> OutputScore:
    network = method.network
    network.check_weights()
    if loader is not None:
        with torch.inference_mode(False), network.evaluating():
            for batch in batches(loader, network.selection.device):
                _outputs(network, batch)
                break
    return OutputScore(method)


def _loaded(kind: type, path: str | Path, model: nn.Module, forward: Forward | None) -> OutputScore:
    loaded = artefact.load(path, kind.__name__, model, likelihood=None, forward=forward)
    return OutputScore(kind(model, forward=forward), loaded.weights)
