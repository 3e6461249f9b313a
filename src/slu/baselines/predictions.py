"""Readings of several networks' predictions for one input: how much they differ, and how unsure they are.

| reading | of members i with outputs fᵢ and probabilities πᵢ | likelihoods |
|---|---|---|
| variance | Σ over outputs of the population variance of fᵢ | every likelihood |
| mutual-information | H(mean of πᵢ) - mean of H(πᵢ): how much the members disagree | classification, multilabel |
| entropy | H(mean of πᵢ): disagreement and each member's own uncertainty | classification, multilabel |

Letters: b points, t outputs, m members, H the entropy in nats; the labels of a multilabel network are
independent, so their entropies add up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from slu.baselines.base import Reader
from slu.core.queries import score_batches
from slu.data import Batch
from slu.errors import DataError, SettingError, unknown
from slu.gradients import Network
from slu.likelihoods import Classification, Likelihood, Multilabel

Probabilities = Callable[[Tensor], Tensor]


def softmax(outputs: Tensor) -> Tensor:
    """(b, 1, t): one question with t answers.

    Raises:
        DataError: There is one output alone.
    """
    if outputs.shape[1] < 2:
        raise DataError(
            "probabilities of classes need at least two outputs per point, got one, for which softmax is always 1; "
            "for a single logit use an ensemble's 'variance', or the likelihood 'multilabel'"
        )
    return outputs.log_softmax(1).exp()[:, None]


def sigmoids(outputs: Tensor) -> Tensor:
    """(b, t, 2): t questions with two answers each; neither is one minus the other, which would cancel."""
    return torch.stack([outputs.sigmoid(), (-outputs).sigmoid()], -1)


# By class and not by kind of it: one of the user's own may mean other probabilities by the same outputs.
PROBABILITIES: dict[type, Probabilities] = {Classification: softmax, Multilabel: sigmoids}


def rest(probabilities: Tensor) -> Tensor:
    """(...) the probability of everything but the likeliest answer, exact however small it is."""
    return _others(probabilities).sum(-1)


def _others(probabilities: Tensor) -> Tensor:
    """The same, with 0 for the likeliest answer."""
    return probabilities.scatter(-1, probabilities.argmax(-1, keepdim=True), 0.0)


def entropy(probabilities: Tensor) -> Tensor:
    """(...) entropies in nats over the last dimension.

    Numerics: the likeliest answer's probability rounds to 1 in a confident network, and its logarithm
    to 0; both are taken from the sum of the others instead.
    """
    others = _others(probabilities)
    rest_sum = others.sum(-1)
    return torch.special.entr(others).sum(-1) - torch.special.xlog1py(1 - rest_sum, -rest_sum)


class Reading(ABC):
    """Takes the (b, t) outputs of one member after the other, and keeps none of them but their mean.

    Args:
        probabilities: From outputs to probabilities, for readings of these.
    """

    def __init__(self, probabilities: Any = None) -> None:
        self._probabilities: Probabilities = probabilities
        self._count = 0
        self._mean = torch.empty(0)
        self._sum: Tensor | float = 0.0

    @abstractmethod
    def add(self, outputs: Tensor) -> None:
        """Take one more member."""

    def value(self) -> Tensor:
        """(b, q) terms that sum to the score."""
        return torch.as_tensor(self._sum) / self._count

    def _average(self, values: Tensor) -> Tensor:
        """Add to the mean, which of equal members is exactly what each of them is; the distance to the one before."""
        self._count += 1
        if self._count == 1:
            self._mean = values.clone()
            return torch.zeros_like(values)
        if values.shape != self._mean.shape:
            raise DataError(
                f"member {self._count} of the ensemble gave outputs of the shape {tuple(values.shape)}, those before "
                f"it {tuple(self._mean.shape)}; all members must have the same outputs"
            )
        distance = values - self._mean
        self._mean += distance / self._count
        return distance


class Variance(Reading):
    """Population variance of each output, (b, t), by Welford's recurrence."""

    def add(self, outputs: Tensor) -> None:
        distance = self._average(outputs)
        self._sum = self._sum + distance.square() * ((self._count - 1) / self._count)


class MutualInformation(Reading):
    """Entropy of the mean minus the mean of entropies, as a sum that cannot cancel.

    It is the mean of KL(πᵢ ‖ π̄). With one member more, m to m + 1, the sum of these grows by
    KL(π ‖ π̄₊) + m KL(π̄ ‖ π̄₊), and a divergence is a sum of terms q f(u) ≥ 0 over answers, with
    f(u) = (1 + u) log(1 + u) - u and u = (p - q)/q.

    Numerics: members that differ by δ have a mutual information of order δ², which a difference of
    entropies loses below 1e-8; here its relative error is about 1e-16/δ. It is 0 for equal members.
    """

    def add(self, outputs: Tensor) -> None:
        distance = self._average(self._probabilities(outputs))
        before, mean = self._count - 1, self._mean
        # Where the mean is 0 every member was, and the distance is 0 too.
        change = distance / (self._count * torch.where(mean > 0, mean, torch.ones_like(mean)))
        self._sum = self._sum + (mean * (_divergence(change * before) + before * _divergence(-change))).sum(-1)


class MeanEntropy(Reading):
    """Entropy of the mean prediction."""

    def add(self, outputs: Tensor) -> None:
        self._average(self._probabilities(outputs))

    def value(self) -> Tensor:
        return entropy(self._mean)


READINGS: dict[str, type[Reading]] = {
    "variance": Variance,
    "mutual-information": MutualInformation,
    "entropy": MeanEntropy,
}


def readings_of(likelihood: Likelihood) -> tuple[str, ...]:
    """The readings that a likelihood has; the first is the default."""
    return tuple(READINGS) if type(likelihood) in PROBABILITIES else ("variance",)


def prediction_reader(network: Network, likelihood: Likelihood, members: Callable[[Batch], Iterator[Tensor]]) -> Reader:
    """Reads the predictions of several members, in float64.

    Args:
        network: Gives the device, and is in evaluation mode while data are scored.
        likelihood: What outputs mean.
        members: The (b, t) outputs of one member after the other for a batch.

    Cost: one forward pass per member and input; 3 b t numbers in float64 whatever the members.

    Numerics: float64, in which the entropy of a network with a lead of 700 in its logits is not 0 yet.
    """
    valid, probabilities = readings_of(likelihood), PROBABILITIES.get(type(likelihood))

    def read(data: Any, *, reading: str, per_output: bool, **how: Any) -> Tensor:
        if reading not in READINGS:
            raise unknown("reading", reading, valid)
        if reading not in valid:
            raise SettingError(
                f"the reading {reading!r} needs predicted probabilities, which the likelihood "
                f"{type(likelihood).__name__} does not have; valid are {', '.join(map(repr, valid))}"
            )
        if per_output and reading != "variance":
            raise SettingError(f"per_output=True is for the reading 'variance'; {reading!r} belongs to all outputs")

        def score(batch: Batch) -> list[Tensor]:
            measured = READINGS[reading](probabilities)
            with torch.no_grad():
                for outputs in members(batch):
                    measured.add(outputs.double())
            return [measured.value() if per_output else measured.value().sum(1)]

        return score_batches(network, data, score, **how)[0]

    return read


def _divergence(change: Tensor) -> Tensor:
    """(1 + u) log(1 + u) - u, which is u²/2 near 0 and 1 at -1."""
    change = change.clamp(min=-1.0)
    return (torch.special.xlog1py(1 + change, change) - change).clamp(min=0.0)
