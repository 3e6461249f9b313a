"""The points of a batch that are scored: its inputs, or every position of them where outputs are of tokens or pixels.

Letters: b inputs with P positions each, C outputs at a position, N the points, q rows measured of each. A position's
rows are those of J_τ, the Jacobian of its outputs. Up to 64 positions of an input are measured one by one. Of more,
neighbours form a group, of which the middle one is measured: the others have its energies per unit of weight, each with
its own weight and its own outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from slu.core.directions import Chosen
from slu.data.batches import Batch
from slu.data.fingerprint import example_keys, uniforms
from slu.errors import SettingError, unknown
from slu.gradients import ForwardPass, Grid, Meter, Network
from slu.gradients.positions import groups_at_once

REDUCTIONS = {
    "max": lambda scores: scores.nan_to_num(nan=-torch.inf).amax(1),
    "mean": lambda scores: scores.nanmean(1),
    "sum": lambda scores: scores.nansum(1),
}
"""From the scores (b, P) of positions, NaN where one does not count, to one per input where any does."""


class Points(Protocol):
    """What of a batch is scored.

    Attributes:
        outputs: (b·P, C) of every position, also of those that are not scored: rows are chosen for all.
        groups: How many of an input are measured, each with its own rows.
    """

    @property
    def outputs(self) -> Tensor: ...
    @property
    def groups(self) -> int: ...

    def draw(self, count: int) -> Tensor:
        """(b·P, count) random numbers in (0, 1) that belong to the positions and not to the batch."""
        ...

    def measure(self, passed: ForwardPass, parts: Sequence[Chosen], meter: Meter) -> Tensor:
        """(m, N, q) numbers of a meter for the chosen rows of every point."""
        ...

    def taken(self, values: Tensor) -> Tensor:
        """(N, ...) of the points, from values (b·P, ...)."""
        ...

    def by_input(self, scores: Tensor) -> Tensor:
        """(b, ...) scores of the points, from (N, ...); 0 at positions that do not count."""
        ...


def points_of(network: Network, batch: Batch, outputs: Tensor, seed: int, sample: int | None = None) -> Points:
    """The points of a batch after the forward pass that gave these outputs (b, t).

    Args:
        network: That was called.
        batch: Its inputs, and targets if there are any: positions with the target -100 do not count.
        outputs: Of the network.
        seed: Of what is drawn.
        sample: How many positions per input at most, of those that count; None for all, also those that do not.
    """
    grid = network.grid(batch.inputs, outputs)
    if grid is None:
        return WholeInputs(outputs, batch, seed)
    return PositionsOf(outputs, batch, grid.with_targets(batch.targets), seed, sample)


@dataclass(frozen=True, eq=False)
class WholeInputs:
    """Every input is a point."""

    outputs: Tensor
    batch: Batch
    seed: int
    groups = 1

    def draw(self, count: int) -> Tensor:
        """As of `Points`."""
        return uniforms(example_keys(self.batch.inputs, len(self.outputs)), count, self.seed, "probes")

    def measure(self, passed: ForwardPass, parts: Sequence[Chosen], meter: Meter) -> Tensor:
        """As of `Points`."""
        return passed.measure(_vectors(parts), meter)

    def taken(self, values: Tensor) -> Tensor:
        """As of `Points`."""
        return values

    def by_input(self, scores: Tensor) -> Tensor:
        """As of `Points`."""
        return scores


class PositionsOf:
    """Every position of an input is a point, or a sample of those that count.

    Attributes:
        outputs, groups: As of `Points`.
        grid: Where they are.
        places: (N,) of the points among all b·P positions.

    Cost: a gradient for every group of positions and row; b q P C numbers of a vector over the outputs at least.
    """

    def __init__(self, outputs: Tensor, batch: Batch, grid: Grid, seed: int, sample: int | None) -> None:
        self.outputs = outputs.reshape(-1, grid.outputs)
        self._keys = example_keys(batch.inputs, grid.points)
        self._seed = seed
        self.grid = grid
        if sample is None:
            self._measured = grid.middles
            # By point, where the middle of its group is among those of its input.
            self._place_of = grid.groups.clamp(min=0)
            self.places = torch.arange(len(self.outputs), device=outputs.device)
        else:
            chosen, known = self._sampled(min(sample, grid.positions))
            self._measured = torch.where(known, chosen, -1)
            first = grid.positions * torch.arange(grid.points, device=outputs.device)[:, None]
            self.places = (chosen + first)[known]
            self._place_of = None
            self._known = known

    def _sampled(self, count: int) -> tuple[Tensor, Tensor]:
        """(b, count) positions by chance, those that count first, and whether they do."""
        drawn = self.grid.from_first(uniforms(self._keys, self.grid.positions, self._seed, "sampled positions"))
        drawn = drawn.masked_fill(~self.grid.counted, torch.inf)
        values, places = drawn.topk(count, 1, largest=False)
        return places, values.isfinite()

    @property
    def groups(self) -> int:
        """As of `Points`."""
        return self._measured.shape[1]

    def draw(self, count: int) -> Tensor:
        """As of `Points`."""
        drawn = uniforms(self._keys, self.grid.positions * count, self._seed, "probes")
        return self.grid.from_first(drawn).view(-1, count)

    def taken(self, values: Tensor) -> Tensor:
        """As of `Points`."""
        return values[self.places]

    def by_input(self, scores: Tensor) -> Tensor:
        """As of `Points`; of all positions, not of a sample."""
        counted = self.grid.counted.reshape(-1, *[1] * (scores.dim() - 1))
        return scores.masked_fill(~counted, 0.0).reshape(self.grid.points, -1)

    def measure(self, passed: ForwardPass, parts: Sequence[Chosen], meter: Meter) -> Tensor:
        """As of `Points`."""
        grid, vectors = self.grid, _vectors(parts)
        points, rows = grid.points, vectors.shape[1]
        each = vectors.view(points, grid.positions, rows, grid.outputs)
        numbers = []
        for places in self._measured.split(groups_at_once(vectors.numel()), 1):
            some = each.new_zeros(points, places.shape[1], rows, grid.positions, grid.outputs)
            index = places.clamp(min=0)[:, :, None, None].expand(-1, -1, rows, grid.outputs)
            chosen = torch.where(places[:, :, None, None] < 0, 0.0, each.gather(1, index))
            some.scatter_(3, index[:, :, :, None], chosen[:, :, :, None])
            measured = passed.measure(some.view(points, -1, grid.positions * grid.outputs), meter)
            numbers.append(measured.unflatten(-1, (places.shape[1], rows)))
        of_places = torch.cat(numbers, -2)  # (m, b, places, q)
        if self._place_of is None:
            return of_places[:, self._known]
        index = self._place_of[None, ..., None].expand(len(of_places), -1, -1, rows)
        return of_places.gather(2, index).flatten(1, 2)


def _vectors(parts: Sequence[Chosen]) -> Tensor:
    vectors = [each.vectors for each in parts if each.vectors is not None]
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors, 1)


def spread(scores: Tensor, points: Points, reduce: str | None) -> Tensor:
    """Scores of a batch as they are returned: (b, ...) of inputs; of positions (b, *positions, ...), or reduced.

    Positions that do not count are NaN.
    """
    if not isinstance(points, PositionsOf):
        if reduce is not None:
            raise SettingError(
                f"reduce={reduce!r}: this network has one vector of outputs per input, and one score; leave reduce out"
            )
        return scores
    counted = points.grid.counted.reshape(-1, *[1] * (scores.dim() - 1))
    scores = scores.masked_fill(~counted, torch.nan)
    if reduce is None:
        return points.grid.split(scores)
    scores = scores.reshape(points.grid.points, -1, *scores.shape[1:])
    return REDUCTIONS[reduce](scores).masked_fill(scores.isnan().all(1), torch.nan)


def check_reduction(reduce: str | None) -> str | None:
    """One of the table, or None."""
    if reduce is not None and reduce not in REDUCTIONS:
        raise unknown("reduce", reduce, REDUCTIONS)
    return reduce


def joined(parts: Sequence[Tensor]) -> Tensor:
    """One after the other; of batches with other positions the shorter ones are filled up with NaN."""
    shape = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    filled = []
    for part in parts:
        if list(part.shape[1:]) != shape:
            whole = part.new_full((len(part), *shape), torch.nan)
            whole[tuple(slice(0, size) for size in part.shape)] = part
            part = whole
        filled.append(part)
    return torch.cat(filled)
