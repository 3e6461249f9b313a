"""The distance of features to those of the nearest points of the data (Sun et al., 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from slu.artifacts import stored
from slu.baselines.features import WIDTH, FeatureData, FeatureMethod, Layer
from slu.budgets import Cost, Size
from slu.checks import whole
from slu.data import Batch
from slu.data.fingerprint import CopyCounter, example_keys, uniforms_at
from slu.errors import SettingError
from slu.gradients import Forward
from slu.likelihoods import Likelihood

NEIGHBOURS = 50
"""Which neighbour is measured by default, where there are so many points."""

_TINY = 1e-300  # below every length but 0
_PRODUCTS = 1 << 20  # of queries and points that are held at a time


@final
class KNN(FeatureMethod):
    """How far is the k-th nearest point of the data, in directions of features?

    Features are divided by their length; the score is the Euclidean distance to the k-th nearest of the points kept.

    Args:
        model, likelihood, features, forward: As of `FeatureMethod`; the likelihood makes no difference.
        neighbours: k. Left out, 50, or as many as there are points where these are fewer; refused where it is given
            and above.
        points: At most so many are kept, chosen by their content and the seed alone; of copies each for itself, so
            that inputs that repeat are as frequent among them as in the data.
        seed: Of this choice.

    Cost: one pass; d numbers of the model's type, at least float32, are kept per point; per query their products.
    During the pass 16 to 32 bytes per distinct point (`CopyCounter`).

    Numerics: the k-th nearest point is found by products and its distance by a difference in float64, so that small
    distances do not cancel. Features that are all 0 have no direction and stay 0.
    """

    reading = "knn"
    kept: ClassVar = {"points": (None, WIDTH)}
    stored = ("neighbours", "points", "seed")

    def __init__(
        self,
        model: nn.Module,
        likelihood: str | Likelihood,
        *,
        neighbours: int | None = None,
        points: int = 10_000,
        features: str | None = None,
        forward: Forward | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, likelihood, features, forward)
        self.neighbours = None if neighbours is None else whole("neighbours", neighbours, least=1)
        self.points = whole("points", points, least=1)
        self.seed = whole("the seed", seed)
        if self.neighbours is not None and self.neighbours > self.points:
            raise SettingError(f"neighbours={neighbours} is above points={points}, the points kept; raise the latter")

    def _cost(self, size: Size) -> Cost:
        each, width = max(size.bytes_each, 4), self._width()
        kept = each * self.points * width
        batch = 8 * size.batch * 3 * width
        products = 2 * each * max(self.points, min(_PRODUCTS, size.batch * self.points))
        return Cost(kept, 3 * kept + 16 * self.points + batch, kept + products + batch, passes=1)

    def _state(self, data: FeatureData) -> dict[str, Tensor]:
        """The points with the smallest numbers in (0, 1), each of its content, which copy of it it is, and the seed."""
        kept, numbers, copies = None, None, CopyCounter()
        for each in data:
            values = _directions(each.values).to(self._dtype)
            keys = example_keys(each.batch.inputs, len(values))
            drawn = uniforms_at(copies(keys), keys, self.seed, "neighbours")
            if kept is None or numbers is None:
                kept, numbers = values[:0], drawn[:0]
            if len(kept) == self.points:  # most points of long data are not among the smallest
                smaller = drawn < numbers[-1]
                values, drawn = values[smaller], drawn[smaller]
            if len(drawn):
                kept, numbers = torch.cat([kept, values]), torch.cat([numbers, drawn])
                order = numbers.argsort(stable=True)[: self.points]
                kept, numbers = kept[order], numbers[order]
        assert kept is not None  # a loader without a batch is refused
        if self.neighbours is not None and self.neighbours > len(kept):
            raise SettingError(
                f"neighbours={self.neighbours} is above the {len(kept)} points of the fit; lower it, leave it out, or "
                "fit on more points"
            )
        return {"points": kept}

    @property
    def _dtype(self) -> torch.dtype:
        # Products in half precision would be too coarse.
        return torch.promote_types(self.network.selection.dtype, torch.float32)

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        lengths = state["points"].double().norm(dim=1)
        wrong = lengths[((lengths - 1).abs() > torch.finfo(self._dtype).eps ** 0.5) & (lengths > 0)]
        if len(wrong):
            raise stored.wrong("the length of a row of points", float(wrong[0]), "1, or 0")

    def _score(self, state: Mapping[str, Tensor], layer: Layer, batch: Batch) -> Tensor:
        points = state["points"]
        queries = _directions(layer(batch).values)
        place = min(self.neighbours or NEIGHBOURS, len(points))
        lengths, scores = points.square().sum(1), []
        for some in queries.split(max(1, _PRODUCTS // len(points))):
            nearness = torch.addmm(lengths, some.to(points.dtype), points.T, beta=-0.5)
            chosen = points[nearness.topk(place, dim=1).indices[:, -1]]
            scores.append((some - chosen.double()).norm(dim=1))
        return torch.cat(scores)


def _directions(values: Tensor) -> Tensor:
    """(b, d) rows of length 1, or 0 where they are 0, in float64."""
    return normalize(values, dim=1, eps=_TINY)
