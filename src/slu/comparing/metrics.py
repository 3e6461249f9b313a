"""How well a score tells points from outside the training distribution from points inside.

Outside is the positive class and larger means less sure, everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from slu.errors import DataError, require, unknown

Scores = Tensor | np.ndarray | Sequence[float]

# FPR95 as whole numbers: 0.95 · m in floating point would round some counts up by one.
CAUGHT_PERCENT = 95


@dataclass(frozen=True)
class Metric:
    """How a metric is called, which way is better, and whether points that occur twice make it larger.

    A point caught beside its own copy is caught with more precision, so resamples have a larger AUPR
    than the points they were drawn from.
    """

    title: str
    larger_is_better: bool
    inflated: bool = False


METRICS = {
    "auroc": Metric("AUROC", True),
    "aupr": Metric("AUPR", True, inflated=True),
    "fpr95": Metric("FPR95", False),
}
"""The fields of a `Detection`, in its order."""


@dataclass(frozen=True)
class Detection:
    """The three usual numbers for one score and one outside set.

    Attributes:
        auroc: Chance that an outside point scores above an inside point, ties counting half:
            1 is perfect, 0.5 is guessing, less is worse than guessing.
        aupr: Average precision with the outside as positive. Guessing gives the outside's share
            of all points, so it compares only between scores on the same two sets.
        fpr95: Share of the inside points flagged at the threshold that flags 95 % of the
            outside; smaller is better.
    """

    auroc: float
    aupr: float
    fpr95: float


def detect(inside: Scores, outside: Scores) -> Detection:
    """Judge a score from its values on points inside and outside.

    Args:
        inside: (n,) scores of points like the training data.
        outside: (m,) scores of points unlike them.

    Returns:
        AUROC, AUPR and FPR95. Tied scores share one threshold, so the order of the points does
        not matter and a constant score is judged as guessing.

    Raises:
        DataError: A set is empty, not one-dimensional, or holds NaN.

    >>> detect(inside=[0.1, 0.2, 0.3], outside=[0.25, 0.9])
    Detection(auroc=0.8333..., aupr=0.8333..., fpr95=0.3333...)
    """
    require("sklearn.metrics", "judging a score")
    from sklearn.metrics import average_precision_score, roc_auc_score

    negatives, positives = checked_scores(inside, "inside"), checked_scores(outside, "outside")
    labels = np.repeat([0, 1], [len(negatives), len(positives)])
    # Only the order matters: ranks also carry infinities, which scikit-learn refuses.
    ranks = np.unique(np.concatenate([negatives, positives]), return_inverse=True)[1]
    caught = -(-CAUGHT_PERCENT * len(positives) // 100)
    threshold = np.sort(positives)[len(positives) - caught]
    return Detection(
        auroc=float(roc_auc_score(labels, ranks)),
        aupr=float(average_precision_score(labels, ranks)),
        fpr95=float(np.mean(negatives >= threshold)),
    )


def find_metric(name: str) -> Metric:
    """A metric from its name in the table."""
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    return METRICS[name]


def checked_scores(scores: Any, name: str) -> np.ndarray:
    """(n,) in float64, refused if empty, of another shape, or with NaN; infinities can be ordered."""
    if isinstance(scores, Tensor):
        scores = scores.detach().cpu().double().numpy()
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise DataError(f"the {name} scores must be one number per point, (n,) with n ≥ 1; got shape {values.shape}")
    missing = int(np.isnan(values).sum())
    if missing:
        first = int(np.flatnonzero(np.isnan(values))[0])
        raise DataError(
            f"{missing} of the {len(values)} {name} scores are NaN, the first at position {first}, and NaN has no "
            "place in an order; look at the inputs and the model's outputs there"
        )
    return values
