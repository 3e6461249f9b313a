"""The demo: a digits network that never saw two classes, and what SLU makes of them.

Three steps, so that whoever shows them can speak in between: `prepare`, `fit`, `judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from slu.comparing import Detection, detect
from slu.core import SLU, SluScore
from slu.core.calibration import COMBINED
from slu.experiments.data import Memory, digits
from slu.experiments.demo_settings import DemoSettings
from slu.experiments.models import MLP
from slu.experiments.randomness import seeded
from slu.experiments.training import Recipe, accuracy, train

HELD_OUT = (8, 9)
INSIDE, UNSEEN, TURNED = "test", "unseen", "turned"
FALSE_ALARMS = 0.05
_HIDDEN = (128, 64)


@dataclass(frozen=True)
class Trained:
    """A network and the digits it does and does not know."""

    data: digits.Digits
    model: nn.Module
    parameters: int
    accuracy: float


@dataclass(frozen=True)
class PointSet:
    """Images (n, 1, 8, 8) to be scored, and the digits on them."""

    images: Tensor
    digits: Tensor


@dataclass(frozen=True)
class Judged:
    """Every score on every set, and how well each tells the outside sets from the test set.

    Attributes:
        sets: The points by name; INSIDE is the test set.
        scores: scores[score][set] is (n,), larger is less sure.
        detections: detections[score][set], for the outside sets.
    """

    sets: Mapping[str, PointSet]
    scores: Mapping[str, Mapping[str, Tensor]]
    detections: Mapping[str, Mapping[str, Detection]]


def prepare(settings: DemoSettings) -> Trained:
    """Train a small perceptron on the digits of eight classes."""
    data = digits.load(HELD_OUT, seed=settings.seed)
    pixels = data.train_images[0].numel()
    model = seeded(lambda: MLP((pixels, *_HIDDEN, len(data.classes))), settings.seed)
    train(model, Memory(data.train_images, data.train_labels), Recipe(epochs=settings.epochs), seed=settings.seed)
    return Trained(
        data=data,
        model=model,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        accuracy=accuracy(model, Memory(data.test_images, data.test_labels)),
    )


def fit(trained: Trained, settings: DemoSettings) -> SluScore:
    """Fit SLU on the training digits but those it is calibrated on."""
    method = SLU(
        trained.model,
        "classification",
        rank=settings.rank,
        sketch_size=settings.sketch_size,
        seed=settings.seed,
    )
    return method.fit((trained.data.train_images, trained.data.train_labels))


def judge(trained: Trained, fitted: SluScore) -> Judged:
    """Score test digits, unseen classes and turned digits by every reading and two baselines."""
    data = trained.data
    sets = {
        INSIDE: PointSet(data.test_images, data.test_digits),
        UNSEEN: PointSet(data.held_out_images, data.held_out_digits),
        TURNED: PointSet(digits.rotated(data.test_images), data.test_digits),
    }
    scores = {
        name: {group: score(points.images) for group, points in sets.items()}
        for name, score in _scores(trained.model, fitted).items()
    }
    detections = {
        name: {group: detect(found[INSIDE], found[group]) for group in sets if group != INSIDE}
        for name, found in scores.items()
    }
    return Judged(sets, scores, detections)


def flagged(fitted: SluScore, judged: Judged) -> dict[str, float]:
    """By set, the share of images that the combined reading flags at the demo's rate of false alarms."""
    limit = fitted.threshold(FALSE_ALARMS, reading=COMBINED)
    combined = judged.scores[f"SLU {COMBINED}"]
    return {group: float((scores > limit).double().mean()) for group, scores in combined.items()}


def kept_numbers(fitted: SluScore) -> int:
    """How many numbers a fitted score keeps beside the network: its basis in sketch space, and its scale."""
    return fitted.subspace.basis.numel() + (0 if fitted.scale is None else fitted.scale.numel())


def summary(settings: DemoSettings, trained: Trained, fitted: SluScore, judged: Judged) -> dict[str, object]:
    """Everything the demo found, ready for JSON."""
    diagnostics = fitted.diagnostics
    return {
        "settings": asdict(settings),
        "training": {
            "classes": list(trained.data.classes),
            "held_out": list(HELD_OUT),
            "points": len(trained.data.train_images),
            "parameters": trained.parameters,
            "test_accuracy": trained.accuracy,
        },
        "fit": {
            "passes": diagnostics.passes,
            "rank": fitted.method.rank,
            "sketch_size": fitted.method.sketch.size,
            "effective_rank": diagnostics.effective_rank,
            "ghosts": diagnostics.ghosts,
            "seconds": diagnostics.seconds,
            "numbers_kept": kept_numbers(fitted),
            "copies_of_parameters": kept_numbers(fitted) / trained.parameters,
        },
        "calibration": {
            "points": None if fitted.calibration is None else fitted.calibration.points,
            "false_alarms": FALSE_ALARMS,
            "flagged": flagged(fitted, judged),
        },
        "points": {group: len(points.images) for group, points in judged.sets.items()},
        "detection": {
            name: {group: asdict(found) for group, found in groups.items()}
            for name, groups in judged.detections.items()
        },
    }


def _scores(model: nn.Module, fitted: SluScore) -> dict[str, Callable[[Tensor], Tensor]]:
    def read(reading: str) -> Callable[[Tensor], Tensor]:
        return lambda images: fitted(images, reading=reading)

    def from_logits(score: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda images: score(_logits(model, images))

    return {f"SLU {reading}": read(reading) for reading in fitted.readings} | {
        "max logit": from_logits(lambda logits: -logits.amax(1)),
        "entropy": from_logits(lambda logits: torch.special.entr(logits.softmax(1)).sum(1)),
    }


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return model(images)
