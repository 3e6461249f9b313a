"""Scores of the outputs alone, without fit and memory: the reference for all other methods.

| method | reading | score of outputs f with probabilities π = softmax(f) |
|---|---|---|
| MaxLogit | max-logit | -max f |
| MaxProbability | max-probability | 1 - max π |
| Entropy | entropy | -Σ π log π |
| Energy | energy | -log Σ exp f |

Numerics: float64 throughout. The probabilities of all but the likeliest class are summed instead of taking
1 - max π, which in float32 is 0 for every input where the largest logit leads by 17 or more. Scores stay
distinct up to a lead of 700.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from slu.artifacts.artifact import Loaded
from slu.baselines.base import Baseline, FittedScore, is_floating
from slu.baselines.predictions import rest, softmax
from slu.budgets import Cost, Size
from slu.core.queries import outputs_of, score_batches
from slu.core.resolve import subject
from slu.data import Batch
from slu.errors import DataError, SettingError, unknown
from slu.gradients import Forward, Network
from slu.likelihoods import Classification, Likelihood


class OutputMethod(Baseline["OutputScore"]):
    """A score of the outputs alone; the classes below say which.

    Args:
        model: Any classifier with outputs (b, t), t ≥ 2. It is never changed.
        forward: As of `Baseline`.

    Cost: one forward pass per input; nothing is kept.
    """

    reading: ClassVar[str]
    # Outputs are read as logits of classes, whatever loss they were trained with.
    likelihood: Likelihood = Classification()

    def __init__(self, model: nn.Module, *, forward: Forward | None = None) -> None:
        # Nothing is differentiated, so frozen parameters count as well; the selection gives the device.
        self.network, _ = subject(model, self.likelihood, is_floating, forward)

    @staticmethod
    @abstractmethod
    def _score(outputs: Tensor) -> Tensor:
        """(b,) scores of (b, t) outputs in float64."""

    def _cost(self, size: Size) -> Cost:
        del size
        return Cost(artefact=0, fitting=0, querying=0, passes=0)

    def fit(self, loader: Any = None, *, progress: bool | None = None) -> OutputScore:
        """The score; the first batch of a loader, where one is given, is checked."""
        del progress
        self.network.check_weights()
        if loader is not None:
            with torch.inference_mode(False), self.network.evaluating():
                _outputs(self.network, next(self.network.batches(loader)))
        return OutputScore(self)

    @classmethod
    def _restored(cls, loaded: Loaded, model: nn.Module, forward: Forward | None) -> OutputScore:
        return OutputScore(cls(model, forward=forward), loaded.weights)


@final
class MaxLogit(OutputMethod):
    """The largest output, negated; see `OutputMethod` for arguments and cost."""

    reading = "max-logit"

    @staticmethod
    def _score(outputs: Tensor) -> Tensor:
        return -outputs.amax(1)


@final
class MaxProbability(OutputMethod):
    """One minus the largest softmax probability, which is the sum of the others; see `OutputMethod`."""

    reading = "max-probability"

    @staticmethod
    def _score(outputs: Tensor) -> Tensor:
        return rest(softmax(outputs))[:, 0]


@final
class Entropy(OutputMethod):
    """The entropy of the softmax, in nats; see `OutputMethod` for arguments and cost."""

    reading = "entropy"

    @staticmethod
    def _score(outputs: Tensor) -> Tensor:
        return Classification().entropy(outputs)


@final
class Energy(OutputMethod):
    """Minus the logarithm of the summed exponentials of the outputs; see `OutputMethod` for arguments and cost."""

    reading = "energy"

    @staticmethod
    def _score(outputs: Tensor) -> Tensor:
        return -outputs.logsumexp(1)


@final
class OutputScore(FittedScore[OutputMethod]):
    """The score made by `fit` of one of the four methods; its one reading is the method's."""

    def __init__(self, method: OutputMethod, weights: dict[str, str] | None = None) -> None:
        super().__init__(method, self._scores, (method.reading,), weights)

    def _scores(self, data: Any, *, reading: str, per_output: bool, **how: Any) -> Tensor:
        if reading != self.method.reading:
            raise unknown("reading", reading, self.readings)
        if per_output:
            raise SettingError(f"per_output=True is not for {reading!r}, which belongs to all outputs; leave it out")

        network, score = self.method.network, self.method._score
        return score_batches(network, data, lambda batch: [score(_outputs(network, batch))], **how)[0]

    def _stored(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {}, {}


def _outputs(network: Network, batch: Batch) -> Tensor:
    """(b, t) outputs in float64; t ≥ 2."""
    outputs = outputs_of(network, batch.inputs, batch.index)
    if outputs.shape[1] < 2:
        raise DataError(
            "a score of the outputs needs at least two classes, the model has one output per point; stack a "
            "single logit f as (0, f) with forward=, or score regression by the variance of a DeepEnsemble"
        )
    return outputs.double()
