"""A Gaussian over weights from the iterates of a descent: mean, diagonal and low-rank part.

Letters: p parameters, k deviations kept, n iterates seen, σ² their population variance, D (k, p) deviations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slu.errors import NumericalError
from slu.parameters import Selection
from slu.seeds import stream

DEVIATIONS = ("final", "running")
"""From which mean the deviations are taken: of all iterates, or of those up to each one's own time."""


@dataclass(frozen=True)
class Moments:
    """What is left of the iterates.

    Attributes:
        mean: (p,)
        variance: (p,) σ², divided by n.
        deviations: (k, p), from the oldest on; (0, p) where the diagonal stands alone.
    """

    mean: Tensor
    variance: Tensor
    deviations: Tensor

    def to(self, device: torch.device) -> Moments:
        return Moments(*(part.to(device) for part in (self.mean, self.variance, self.deviations)))

    def sample(self, selection: Selection, seed: int, index: int) -> dict[str, Tensor]:
        """The index-th sampled weights by name: mean + σ z₁/√2 + Dᵀ z₂/√(2(k - 1)), z normal.

        So the covariance is half the diagonal's, half the low-rank part's. Without deviations it is
        the diagonal's alone, mean + σ z₁.

        Cost: p normal numbers drawn on the CPU and a pass over D; one new vector of p numbers, and
        two of the largest parameter tensor.

        Numerics: drawn in the type of the moments, tensor by tensor, from a stream of its own; the
        same numbers each time.
        """
        k = len(self.deviations)
        draw = stream(seed, "swag sample", index)
        # Square roots of the shares of the covariance.
        diagonal, low_rank = (1.0, 0.0) if k < 2 else (math.sqrt(0.5), 1 / math.sqrt(2 * (k - 1)))
        z = torch.randn(k, generator=draw, dtype=self.mean.dtype).to(self.mean.device) * low_rank
        weights = self.mean.clone()
        for segment in selection.segments:
            place = slice(segment.start, segment.stop)
            noise = torch.randn(segment.stop - segment.start, generator=draw, dtype=weights.dtype).to(weights.device)
            weights[place].addcmul_(noise, self.variance[place].sqrt(), value=diagonal)
            if k:
                weights[place].addmv_(self.deviations[:, place].T, z)
        return selection.views(weights)


class Collector:
    """Takes the iterates of a descent one by one.

    Args:
        selection: The p parameters.
        rank: k; 1 keeps no deviation, because the spread of a single one is not defined.
        deviations: A word of DEVIATIONS. "running" is what the first implementation of SWAG did:
            an iterate less the mean at its time, so the deviation of the very first is always zero.
        total: n, how many will come.

    Cost: (k + 2) p numbers, and one of the largest parameter tensor.

    Numerics: Welford's recurrence, because the mean of squares less the squared mean cancels: iterates
    differ in the fourth digit or later. What is left is the rounding of the weights themselves.
    """

    def __init__(self, selection: Selection, rank: int, deviations: str, total: int) -> None:
        self._selection = selection
        self._total = total
        self._running = deviations == "running"
        self.count = 0
        kept = rank if rank > 1 else 0
        self._mean, self._squares = (
            torch.zeros(selection.count, dtype=selection.dtype, device=selection.device) for _ in range(2)
        )
        self._latest = torch.empty(kept, selection.count, dtype=selection.dtype, device=selection.device)

    def add(self, weights: Mapping[str, Tensor]) -> None:
        """Take one more iterate.

        Raises:
            NumericalError: It is not finite.
        """
        self.count += 1
        # A ring that is in the order of time once all have come.
        row = (self.count - 1 - self._total) % max(len(self._latest), 1)
        for segment in self._selection.segments:
            place = slice(segment.start, segment.stop)
            values = weights[segment.name].detach().reshape(-1).to(self._mean.dtype)
            if not bool(torch.isfinite(values).all()):
                raise NumericalError(f"{segment.name} left the finite numbers in SWAG's descent; lower learning_rate=")
            distance = values - self._mean[place]
            self._mean[place].add_(distance, alpha=1 / self.count)
            self._squares[place].addcmul_(distance, distance, value=1 - 1 / self.count)
            if len(self._latest):
                torch.sub(values, self._mean[place], out=distance)
                self._latest[row, place] = distance if self._running else values

    def moments(self) -> Moments:
        """Of the iterates so far; the collector cannot be used after it.

        Raises:
            NumericalError: No weight moved.
        """
        variance = self._squares.div_(self.count)
        if not bool(variance.any()):
            raise NumericalError(
                f"no weight moved between the {self.count} collected iterates, so every score would be zero; "
                "raise learning_rate="
            )
        if not self._running:
            self._latest.sub_(self._mean)
        return Moments(self._mean, variance, self._latest)


def first_draws(seed: int, dtype: torch.dtype, count: int = 16) -> Tensor:
    """A few numbers of the samples' stream: they show whether the samples of a file can be drawn again."""
    return torch.randn(count, generator=stream(seed, "swag sample", 0), dtype=dtype)
