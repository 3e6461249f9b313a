"""What `slu demo` computes: a network trained on digits without two classes, and SLU's scores of them.

Three steps, so that the command can report in between: `prepare`, `fit`, `judge`. The images are scikit-learn's 8 × 8
digits; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from slu.comparing import Detection, detect
from slu.core import SLU, SluScore
from slu.errors import require
from slu.likelihoods import Classification
from slu.seeds import fenced, stream

HELD_OUT = (8, 9)
CLASSES = tuple(digit for digit in range(10) if digit not in HELD_OUT)
INSIDE, UNSEEN, TURNED = "test", "unseen", "turned"
FALSE_ALARMS = 0.05
COMBINED = "combined"
_BRIGHTEST = 16.0
_TEST_SHARE = 0.3
_HIDDEN = (128, 64)
_BATCH, _RATE, _CLIP = 128, 1e-3, 1.0


@dataclass(frozen=True)
class DemoSettings:
    """The options of the command, which has their meaning and defaults; None leaves a size to SLU."""

    rank: int | None
    sketch_size: int | None
    seed: int
    epochs: int


@dataclass(frozen=True)
class PointSet:
    """Images (n, 1, 8, 8) with pixels in [0, 1], and the digits on them."""

    images: Tensor
    digits: Tensor

    @property
    def labels(self) -> Tensor:
        """Of digits that the network learns: their positions among these."""
        return torch.searchsorted(torch.tensor(CLASSES), self.digits)


@dataclass(frozen=True)
class Digits:
    """What the network learns from, other images of the same classes, and every image of the classes held out."""

    train: PointSet
    test: PointSet
    held_out: PointSet


def load_digits(seed: int) -> Digits:
    """scikit-learn's digits: the held-out classes, and a seeded train and test set of the others."""
    require("sklearn.datasets", "the digits data set")
    from sklearn import datasets

    stored_pixels, stored_digits = datasets.load_digits(return_X_y=True)
    images = torch.from_numpy((np.asarray(stored_pixels) / _BRIGHTEST).astype(np.float32)).reshape(-1, 1, 8, 8)
    digits = torch.from_numpy(np.asarray(stored_digits)).long()
    held_out = torch.isin(digits, torch.tensor(HELD_OUT))
    kept = torch.nonzero(~held_out).squeeze(1)
    kept = kept[torch.randperm(len(kept), generator=stream(seed, "digits split"))]
    test, train = kept.tensor_split([round(_TEST_SHARE * len(kept))])
    return Digits(*(PointSet(images[chosen], digits[chosen]) for chosen in (train, test, held_out)))


@dataclass(frozen=True)
class Trained:
    """A network and the digits it does and does not know."""

    data: Digits
    model: nn.Module
    parameters: int
    accuracy: float


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
    data = load_digits(settings.seed)
    widths = (data.train.images[0].numel(), *_HIDDEN, len(CLASSES))
    with fenced(settings.seed, "initial weights"):
        linear = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths)]
    model = nn.Sequential(nn.Flatten(), linear[0], nn.Tanh(), linear[1], nn.Tanh(), linear[2])
    _train(model, data.train, settings)
    predicted = _logits(model, data.test.images).argmax(1)
    return Trained(
        data=data,
        model=model,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        accuracy=int((predicted == data.test.labels).sum()) / len(predicted),
    )


def _train(model: nn.Module, points: PointSet, settings: DemoSettings) -> None:
    """Minimise the mean loss in place by Adam; the order of the points follows from the seed."""
    images, labels = points.images, points.labels
    likelihood, optimizer = Classification(), torch.optim.Adam(model.parameters(), lr=_RATE)
    model.train()
    for epoch in range(settings.epochs):
        order = torch.randperm(len(images), generator=stream(settings.seed, "training order", epoch))
        for chosen in order.split(_BATCH):
            optimizer.zero_grad(set_to_none=True)
            likelihood.loss(model(images[chosen]), labels[chosen]).mean().backward()
            nn.utils.clip_grad_value_(model.parameters(), _CLIP)
            optimizer.step()
    model.zero_grad(set_to_none=True)
    model.eval()


def fit(trained: Trained, settings: DemoSettings) -> SluScore:
    """Fit SLU on the training digits but those it is calibrated on."""
    rank, size, seed = settings.rank, settings.sketch_size, settings.seed
    method = SLU(trained.model, "classification", rank=rank, sketch_size=size, seed=seed)
    return method.fit((trained.data.train.images, trained.data.train.labels))


def judge(trained: Trained, fitted: SluScore) -> Judged:
    """Score test digits, unseen classes and turned digits by every reading and two baselines."""
    data = trained.data
    sets = {
        INSIDE: data.test,
        UNSEEN: data.held_out,
        TURNED: PointSet(torch.rot90(data.test.images, dims=(-2, -1)).contiguous(), data.test.digits),
    }
    scores = {
        f"SLU {reading}": {group: fitted(points.images, reading=reading) for group, points in sets.items()}
        for reading in fitted.readings
        if reading not in ("max-logit", "entropy")  # which are the baselines
    }
    logits = {group: _logits(trained.model, points.images) for group, points in sets.items()}
    scores["max logit"] = {group: -values.amax(1) for group, values in logits.items()}
    scores["entropy"] = {group: torch.special.entr(values.softmax(1)).sum(1) for group, values in logits.items()}
    detections = {
        name: {group: detect(by_set[INSIDE], by_set[group]) for group in sets if group != INSIDE}
        for name, by_set in scores.items()
    }
    return Judged(sets, scores, detections)


def flagged(fitted: SluScore, judged: Judged) -> dict[str, float]:
    """By set, the share of images that the combined reading flags at the demo's rate of false alarms."""
    limit = fitted.threshold(FALSE_ALARMS, reading=COMBINED)
    combined = judged.scores[f"SLU {COMBINED}"]
    return {group: float((scores > limit).double().mean()) for group, scores in combined.items()}


def kept_numbers(fitted: SluScore) -> int:
    """How many numbers a fitted score keeps beside the network: its basis in sketch space, scale and layers."""
    scale, layers = fitted.scale, fitted.state.layers
    kept = fitted.state.subspace.basis.numel() + (0 if scale is None else scale.values.numel())
    return kept + (0 if layers is None else layers.folding.numbers)


def summary(settings: DemoSettings, trained: Trained, fitted: SluScore, judged: Judged) -> dict[str, object]:
    """All results of the demo, ready for JSON."""
    diagnostics = fitted.diagnostics
    return {
        "settings": asdict(settings),
        "training": {
            "classes": list(CLASSES),
            "held_out": list(HELD_OUT),
            "points": len(trained.data.train.images),
            "parameters": trained.parameters,
            "test_accuracy": trained.accuracy,
        },
        "fit": {
            "passes": diagnostics.passes,
            "rank": fitted.settings.rank,
            "sketch_size": fitted.settings.sketch.size,
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
            name: {group: asdict(detection) for group, detection in groups.items()}
            for name, groups in judged.detections.items()
        },
    }


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return model(images)
