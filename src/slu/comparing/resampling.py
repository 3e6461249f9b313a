"""AUROC, AUPR and FPR95 of many resamples at once, each in time linear in the number of points.

A resample with replacement is a count for every point. A score's order is found once; from it the
metrics of any counts are cumulative sums, tied points moving together.

Letters: n points inside, m outside, r resamples; counts are (n, r) and (m, r).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from slu.comparing.metrics import CAUGHT_PERCENT
from slu.seeds import stream

_BLOCK = 50  # resamples drawn together: a part of what a seed means, so it must stay


@dataclass(frozen=True)
class Counts:
    """How often each point stands in each resample: (n, r) inside, (m, r) for every outside set."""

    inside: np.ndarray
    outside: Mapping[str, np.ndarray]


def resamples(inside: int, outside: Mapping[str, int], count: int, seed: int) -> Iterator[Counts]:
    """Blocks of resamples, inside and outside points drawn separately.

    They depend on the seed, on the sizes, and for an outside set on its name; not on what else is
    compared, so that every score meets the same resamples, and another set changes none of them.

    Args:
        inside: n.
        outside: m of every set.
        count: Resamples in all.
        seed: One seed, the same counts anywhere.

    Cost: (n + m) draws a resample; one block is held at a time.
    """
    for block, start in enumerate(range(0, count, _BLOCK)):
        kept = min(_BLOCK, count - start)
        yield Counts(
            inside=_drawn(inside, stream(seed, "bootstrap inside", block))[:, :kept],
            outside={
                name: _drawn(points, stream(seed, "bootstrap outside", name, block))[:, :kept]
                for name, points in outside.items()
            },
        )


def _drawn(points: int, generator: torch.Generator) -> np.ndarray:
    """(points, block) counts that sum to `points` in every column."""
    chosen = torch.randint(points, (_BLOCK, points), generator=generator).numpy()
    places = chosen + points * np.arange(_BLOCK)[:, None]
    counts = np.bincount(places.ravel(), minlength=_BLOCK * points).reshape(_BLOCK, points)
    # A point's counts lie together: sorting points moves whole rows.
    return np.ascontiguousarray(counts.T, dtype=np.float64)


class InsideOrder:
    """The inside points of one score, sorted.

    Args:
        scores: (n,) without NaN.
    """

    def __init__(self, scores: np.ndarray) -> None:
        self._order = np.argsort(scores, kind="stable")
        self.sorted = scores[self._order]

    def below(self, counts: np.ndarray) -> np.ndarray:
        """(n + 1, r): how much of the resample lies before each place in the order."""
        found = np.zeros((len(counts) + 1, counts.shape[1]))
        np.cumsum(counts[self._order], axis=0, out=found[1:])
        return found


class OutsideOrder:
    """The outside points of one score in falling order, and their places among the inside points.

    Only the outside's values can be thresholds at which a metric changes, so inside points are met
    at those alone.

    Args:
        inside: Of the same score.
        scores: (m,) without NaN.
    """

    def __init__(self, inside: InsideOrder, scores: np.ndarray) -> None:
        self._order = np.argsort(scores, kind="stable")[::-1]
        falling = scores[self._order]
        new = np.ones(len(falling), dtype=bool)
        new[1:] = falling[1:] != falling[:-1]
        self._starts = np.flatnonzero(new)
        values = falling[self._starts]
        self._first = np.searchsorted(inside.sorted, values, "left")
        self._last = np.searchsorted(inside.sorted, values, "right")

    def metrics(self, below: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """(3, r): AUROC, AUPR and FPR95 of every resample.

        Args:
            below: What `InsideOrder.below` made of the inside's counts.
            counts: (m, r).

        Numerics: sums of whole numbers below 2⁵³, so exact up to the last division.
        """
        gained = counts[self._order]
        if len(self._starts) < len(gained):
            gained = np.add.reduceat(gained, self._starts, axis=0)
        caught = np.cumsum(gained, axis=0)
        under = below[self._first]
        negatives, positives = below[-1], caught[-1]
        auroc = np.einsum("ij,ij->j", gained, under + below[self._last]) / (2 * negatives * positives)
        alarms = negatives - under
        # Where nothing is caught yet nothing was gained either; 1 stands in for the empty sum.
        precision = caught / np.maximum(caught + alarms, 1)
        aupr = np.einsum("ij,ij->j", gained, precision) / positives
        enough = np.argmax(100 * caught >= CAUGHT_PERCENT * positives, axis=0)
        fpr95 = np.take_along_axis(alarms, enough[None], axis=0)[0] / negatives
        return np.stack([auroc, aupr, fpr95])


@dataclass(frozen=True)
class Scored:
    """What a score gave: (n,) for the inside points, (m,) for those outside sets that it has; without NaN."""

    inside: np.ndarray
    outside: Mapping[str, np.ndarray]


def resampled_metrics(scored: Sequence[Scored], *, count: int, seed: int) -> list[dict[str, np.ndarray]]:
    """The metrics of every score on every outside set, in the same resamples.

    Args:
        scored: Of the same points in the same order.
        count: Number of resamples.
        seed: Of the resamples.

    Returns:
        found[score][set] is (3, count): what belongs to one resample stands at one place.

    Cost: O(n + m) for each score, set and resample, after one sort.
    """
    if not scored:
        return []
    inside = [InsideOrder(found.inside) for found in scored]
    outside = [
        {name: OutsideOrder(order, scores) for name, scores in found.outside.items()}
        for order, found in zip(inside, scored, strict=True)
    ]
    sizes = {name: len(scores) for found in scored for name, scores in found.outside.items()}
    blocks: list[dict[str, list[np.ndarray]]] = [{name: [] for name in found.outside} for found in scored]
    for counts in resamples(len(scored[0].inside), sizes, count, seed):
        for order, groups, found in zip(inside, outside, blocks, strict=True):
            below = order.below(counts.inside)
            for name, group in groups.items():
                found[name].append(group.metrics(below, counts.outside[name]))
    return [{name: np.concatenate(found, axis=1) for name, found in groups.items()} for groups in blocks]
