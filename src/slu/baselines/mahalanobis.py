"""Distances of features to Gaussians fitted to the data: Mahalanobis, and relative to all data.

Letters: n points, C classes, d features; μ_c the mean of class c and Σ the covariance within classes, of all classes
together; μ₀ and Σ₀ mean and covariance of all points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from slu.baselines.features import WIDTH, FeatureData, FeatureMethod, Features, Layer, check_logits
from slu.budgets import Cost, Size
from slu.checks import positive
from slu.data import Batch
from slu.errors import NumericalError
from slu.gradients import Forward
from slu.likelihoods import Classification, Likelihood

RIDGE = 1e-6
"""By default, of the mean variance."""

_CONSTANT = 1e-14  # variance beside the mean square of features below which it is rounding, in float32
_COPIES = 6  # of a (d, d) matrix, while its eigenvectors are found


@final
class Moments:
    """Counts, sums and second moments of features by class, in float64.

    Numerics: all are about the mean of the first batch, so that a mean far from 0 does not cancel.
    """

    def __init__(self, first: Tensor, classes: int) -> None:
        self.shift = first.mean(0)
        self.counts = first.new_zeros(classes)
        self.sums = first.new_zeros(classes, first.shape[1])
        self.products = first.new_zeros(first.shape[1], first.shape[1])

    def add(self, values: Tensor, classes: Tensor) -> None:
        centred = values - self.shift
        member = torch.nn.functional.one_hot(classes, len(self.counts)).to(centred)
        self.counts += member.sum(0)
        self.sums += member.T @ centred
        self.products += centred.T @ centred

    def pooled(self) -> Moments:
        """The same with all points in one class."""
        one = Moments(self.shift[None], 1)
        one.counts, one.sums, one.products = self.counts.sum(0, keepdim=True), self.sums.sum(0)[None], self.products
        return one

    def gaussians(self, ridge: float) -> tuple[Tensor, Tensor]:
        """(C, d) means of the classes that have points, and the (d, d) `whitening` of the covariance within them."""
        there = self.counts > 0
        counts, sums = self.counts[there], self.sums[there]
        means = sums / counts[:, None]
        points = counts.sum()
        covariance = (self.products - means.T @ sums) / points
        spread, size = covariance.trace(), (self.shift + sums.sum(0) / points).square().sum()
        if not bool(spread > _CONSTANT * size):
            raise NumericalError(
                f"the features of {int(points)} points in {len(counts)} classes do not vary within classes (variance "
                f"{float(spread):.3g}), so there is no covariance; fit on more points per class, or name another layer "
                "with features="
            )
        return means + self.shift, whitening(covariance, ridge)


def whitening(covariance: Tensor, ridge: float) -> Tensor:
    """(d, d) W with W Wᵀ = (Σ + ρ I)⁻¹, where ρ is `ridge` times the mean variance, tr Σ / d.

    Numerics: eigenvectors in float64 on the CPU. Without ridge, a singular covariance has no inverse: features that
    are constant on the data, or fewer points than features. With it, the condition number is at most d / ridge.
    """
    values, vectors = torch.linalg.eigh(covariance.cpu())
    values = values.clamp(min=0)
    return (vectors / (values + ridge * values.mean()).sqrt()).to(covariance.device)


def squared_distances(values: Tensor, means: Tensor, root: Tensor) -> Tensor:
    """(b, C) squared Mahalanobis distances, of differences that are formed and not multiplied out."""
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist((values - means[0]) @ root, (means - means[0]) @ root, compute_mode=exact).square()


@final
class Mahalanobis(FeatureMethod):
    """How far are the features from those of the nearest class (Lee et al., 2018)?

    The score is min over classes c of (h - μ_c)ᵀ (Σ + ρ I)⁻¹ (h - μ_c), for features h of one layer; the inputs are
    not perturbed and layers not combined as in the paper. Classes are the targets of the loader; of batches without
    targets, the classes that the model predicts. Regression and multilabel networks have no classes: one mean.

    Args:
        model, likelihood, features, forward: As of `FeatureMethod`.
        ridge: ρ as a multiple of the mean variance, tr Σ / d, a number above 0.

    Cost: one pass; (C + d) d numbers kept in float64, six times d² while fitting.

    Numerics: see `whitening` on the ridge, and `Moments`.
    """

    reading = "mahalanobis"
    kept: ClassVar = {"means": (None, WIDTH), "whitening": (WIDTH, WIDTH)}
    stored = ("ridge",)

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        ridge: float = RIDGE,
        features: str | None = None,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(model, likelihood, features, forward)
        self.ridge = positive("ridge", ridge)

    def _cost(self, size: Size) -> Cost:
        return _gaussian_cost(self._width(), _classes(self.likelihood, size), size, gaussians=1)

    def _state(self, data: FeatureData) -> dict[str, Tensor]:
        means, root = _moments(data, self.likelihood).gaussians(self.ridge)
        return {"means": means, "whitening": root}

    def _score(self, state: Mapping[str, Tensor], layer: Layer, batch: Batch) -> Tensor:
        return squared_distances(layer(batch).values, state["means"], state["whitening"]).amin(1)


@final
class RelativeMahalanobis(FeatureMethod):
    """How much farther are the features from the nearest class than from all data (Ren et al., 2021)?

    The score is that of `Mahalanobis` minus (h - μ₀)ᵀ (Σ₀ + ρ₀ I)⁻¹ (h - μ₀), the distance to one Gaussian of all
    points. For classification only: with one class both are the same. Classes are as of `Mahalanobis`.

    Args:
        model, likelihood, features, forward: As of `FeatureMethod`.
        ridge: As of `Mahalanobis`, for either covariance with its own mean variance.

    Cost: one pass; (C + 1 + 2 d) d numbers kept in float64, seven times d² while fitting.

    Numerics: as of `Mahalanobis`.
    """

    reading = "relative-mahalanobis"
    kept: ClassVar = {
        **Mahalanobis.kept,
        "background_mean": (1, WIDTH),
        "background_whitening": (WIDTH, WIDTH),
    }
    stored = ("ridge",)

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        ridge: float = RIDGE,
        features: str | None = None,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(model, likelihood, features, forward)
        self._check_classes()
        self.ridge = positive("ridge", ridge)

    def _cost(self, size: Size) -> Cost:
        return _gaussian_cost(self._width(), _classes(self.likelihood, size) + 1, size, gaussians=2)

    def _state(self, data: FeatureData) -> dict[str, Tensor]:
        moments = _moments(data, self.likelihood)
        means, root = moments.gaussians(self.ridge)
        background, background_root = moments.pooled().gaussians(self.ridge)
        every = (means, root, background, background_root)
        return dict(zip(self.kept, every, strict=True))

    def _score(self, state: Mapping[str, Tensor], layer: Layer, batch: Batch) -> Tensor:
        values = layer(batch).values
        background = squared_distances(values, state["background_mean"], state["background_whitening"])
        return squared_distances(values, state["means"], state["whitening"]).amin(1) - background[:, 0]


def _moments(data: FeatureData, likelihood: Likelihood) -> Moments:
    moments = None
    for features in data:
        if moments is None:
            count = features.outputs.shape[1] if isinstance(likelihood, Classification) else 1
            moments = Moments(features.values, count)
        moments.add(features.values, _class_of(features, likelihood))
    assert moments is not None  # a loader without a batch is refused
    return moments


def _class_of(features: Features, likelihood: Likelihood) -> Tensor:
    """(b,) classes: the targets, or what is predicted where there are none."""
    outputs, targets = features.outputs, features.batch.targets
    if not isinstance(likelihood, Classification):
        return torch.zeros(len(outputs), dtype=torch.int64, device=outputs.device)
    check_logits(outputs)
    if targets is None:
        return outputs.argmax(1)
    likelihood.loss(outputs, targets)  # refuses what are no classes
    return targets.long()


def _classes(likelihood: Likelihood, size: Size) -> int:
    return size.outputs if isinstance(likelihood, Classification) else 1


def _gaussian_cost(width: int, means: int, size: Size, *, gaussians: int) -> Cost:
    kept = 8 * (means + gaussians * width) * width
    batch = 8 * size.batch * (3 * width + 2 * means)
    fitting = kept + 8 * (_COPIES * width + 3 * means) * width + batch
    return Cost(kept, fitting, kept + 16 * means * width + batch, passes=1)
