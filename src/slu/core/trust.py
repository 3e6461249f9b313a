"""What a network predicts for its calibration points, and whether it has memorized them.

Points that are held out of a fit were in the training of the network. Where it has memorized them, fresh inputs look
stranger than these and are flagged more often than asked for. Targets and outputs of the points show whether it may
have; they cannot show how well it does on fresh inputs. docs/calibration.md has what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scipy import special
from torch import Tensor

from slu.artifacts import stored
from slu.errors import DataError
from slu.likelihoods import Classification, Likelihood, Multilabel, Regression

ACCURACY, CONFIDENCE = 0.995, 0.97
"""From these on a network counts as having memorized its training points. Of the networks that the rule was chosen on
(`benchmarks.false_alarms`), those with too many false alarms had at least 1.000 and 0.999, those without whose training
accuracy is below 1 at most 0.987 and 0.946: about halfway between."""
LEAST_CONFIDENCE, FEWER, CHANCE = 0.85, 1 / 3, 0.01
"""A network that is at least this sure counts so too where it errs on less than a third of what it says, with less than
this probability by its own confidence: of points that it was not trained on it would err on more. Networks that are
right and less sure are trained for too short a time to have memorized anything."""


@dataclass(frozen=True)
class Predictions:
    """What the network predicts for calibration points, beside their targets.

    Attributes:
        accuracy: The share of points whose likeliest class is the target; of several labels the share of labels. None
            for regression, where there is no right or wrong.
        confidence: The mean probability of what is predicted; None for regression.
        loss: The mean loss per point; of several labels, over their number.
        points: How many points have a target that the likelihood can take.
    """

    accuracy: float | None
    confidence: float | None
    loss: float
    points: int

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Predictions:
        """From the fields of a file; DamagedFileError where they cannot be."""
        rates = {name: plain.get(name) for name in ("accuracy", "confidence")}
        rates = {name: None if each is None else stored.number(plain, name, 0.0, 1.0) for name, each in rates.items()}
        return cls(**rates, loss=stored.number(plain, "loss"), points=stored.whole(plain, "points", least=1))

    @property
    def memorized(self) -> bool:
        """Whether nearly all are right and sure, or far more right than sure: fresh inputs may well look stranger."""
        if self.accuracy is None or self.confidence is None:
            return False
        if self.accuracy >= ACCURACY and self.confidence >= CONFIDENCE:
            return True
        right = math.floor(self.accuracy * self.points + 1e-6)
        chance = float(special.bdtrc(right - 1, self.points, self.confidence))  # of so many or more right ones
        fewer = 1 - self.accuracy <= FEWER * (1 - self.confidence)
        return self.confidence >= LEAST_CONFIDENCE and fewer and chance < CHANCE

    def __str__(self) -> str:
        if self.accuracy is None or self.confidence is None:
            return f"mean loss {self.loss:.3g}"
        return f"accuracy {self.accuracy:.3f}, mean confidence {self.confidence:.3f}, mean loss {self.loss:.3g}"


@dataclass
class PredictionSums:
    """Sums over batches of calibration points, of the outputs that they are scored by."""

    right: float = 0.0
    confident: float = 0.0
    loss: float = 0.0
    points: int = 0
    _classes: bool = field(default=False, repr=False)

    def __call__(self, likelihood: Likelihood, targets: Any, outputs: Tensor) -> None:
        """Add a batch; targets that the likelihood cannot take are left out, because the score does not need them.

        Numerics: float64, so that the sums do not depend on the batches.
        """
        if not isinstance(targets, Tensor) or not isinstance(likelihood, Classification | Multilabel | Regression):
            return
        wide = outputs.detach().double()
        try:
            losses = likelihood.loss(wide, targets)
        except DataError:
            return
        each = wide.shape[1] if isinstance(likelihood, Multilabel) else 1
        self.points += len(wide)
        self.loss += float(losses.sum()) / each
        if isinstance(likelihood, Classification):
            sure, predicted = wide.softmax(1).max(1)
            self._add(sure, predicted == targets)
        elif isinstance(likelihood, Multilabel):
            self._add(wide.abs().sigmoid().mean(1), ((wide > 0) == (targets.view_as(wide) > 0.5)).double().mean(1))

    def _add(self, sure: Tensor, right: Tensor) -> None:
        self._classes = True
        self.confident += float(sure.sum())
        self.right += float(right.double().sum())

    def add(self, other: PredictionSums) -> None:
        """Add the sums of another process."""
        self.right, self.confident = self.right + other.right, self.confident + other.confident
        self.loss, self.points = self.loss + other.loss, self.points + other.points
        self._classes |= other._classes

    def predictions(self) -> Predictions | None:
        """The means; None where no point had a target, or the loss overflows."""
        if not self.points or not math.isfinite(self.loss):
            return None
        rates = (self.right / self.points, self.confident / self.points) if self._classes else (None, None)
        return Predictions(*rates, self.loss / self.points, self.points)
