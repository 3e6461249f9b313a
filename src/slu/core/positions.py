"""The points of a batch that are scored: its inputs, or every position of them where outputs are of tokens or pixels.

Letters: b inputs with P positions each, C outputs at a position, N the points, q rows measured of each. A position's
rows are those of J_τ, the Jacobian of its outputs. Up to 64 positions of an input are measured one by one. Of more,
neighbours form a group: one mixture of their rows with random signs is measured, Σ_τ ε_τ w_τ u_τᵀ J_τ, whose energy is
on average that of the rows, weighted by w². All positions of a group have this energy per unit of weight, each with its
own weight and its own outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from slu.core.directions import Chosen
from slu.data.batches import Batch
from slu.data.fingerprint import example_keys, random_signs, uniforms
from slu.errors import SettingError, unknown
from slu.gradients import ForwardPass, Grid, Meter, Network
from slu.gradients.positions import groups_at_once

REDUCTIONS = {
    "max": lambda scores: scores.nan_to_num(nan=-torch.inf).amax(1),
    "mean": lambda scores: scores.nanmean(1),
    "sum": lambda scores: scores.nansum(1),
}
"""From the scores (b, P) of positions, NaN where one does not count, to one per input."""


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
        groups = grid.groups
        if sample is None:
            self._slots = torch.arange(grid.count, device=outputs.device).expand(grid.points, -1)
            # By point, where its group is among the slots of its input.
            self._slot_of = groups.clamp(min=0)
            self.places = torch.arange(len(self.outputs), device=outputs.device)
        else:
            chosen, known = self._sampled(min(sample, grid.positions))
            self._slots = torch.where(known, groups.gather(1, chosen), -1)
            first = grid.positions * torch.arange(grid.points, device=outputs.device)[:, None]
            self.places = (chosen + first)[known]
            self._slot_of = None
            self._known = known

    def _sampled(self, count: int) -> tuple[Tensor, Tensor]:
        """(b, count) positions by chance, those that count first, and whether they do."""
        drawn = uniforms(self._keys, self.grid.positions, self._seed, "sampled positions")
        drawn = drawn.masked_fill(~self.grid.counted, torch.inf)
        values, places = drawn.topk(count, 1, largest=False)
        return places, values.isfinite()

    @property
    def groups(self) -> int:
        """As of `Points`."""
        return self._slots.shape[1]

    def draw(self, count: int) -> Tensor:
        """As of `Points`."""
        return uniforms(self._keys, self.grid.positions * count, self._seed, "probes").view(-1, count)

    def taken(self, values: Tensor) -> Tensor:
        """As of `Points`."""
        return values[self.places]

    def measure(self, passed: ForwardPass, parts: Sequence[Chosen], meter: Meter) -> Tensor:
        """As of `Points`."""
        grid, vectors = self.grid, _vectors(parts)
        points, positions, rows = grid.points, grid.positions, vectors.shape[1]
        mixed = vectors * self._mixture(torch.cat([part.row_scales() for part in parts], 1))[..., None].to(vectors)
        mixed = mixed.view(points, positions, rows, grid.outputs).transpose(1, 2)
        numbers = []
        for slots in self._slots.split(groups_at_once(mixed.numel()), 1):
            members = (grid.groups[:, None] == slots[..., None]) & (slots[..., None] >= 0)  # (b, step, P)
            some = torch.where(members[:, :, None, :, None], mixed[:, None], 0.0)
            measured = passed.measure(some.reshape(points, -1, positions * grid.outputs), meter)
            numbers.append(measured.unflatten(-1, (slots.shape[1], rows)))
        of_slots = torch.cat(numbers, -2)  # (m, b, slots, q)
        if self._slot_of is None:
            return of_slots[:, self._known]
        index = self._slot_of[None, ..., None].expand(len(of_slots), -1, -1, rows)
        return of_slots.gather(2, index).flatten(1, 2)

    def _mixture(self, scales: Tensor) -> Tensor:
        """(b·P, q) the factors ε w of every row; 1 for a position alone in its group."""
        grid, rows = self.grid, scales.shape[1]
        scales = scales.view(grid.points, -1, rows)
        places = torch.where(grid.groups < 0, grid.count, grid.groups)[..., None].expand_as(scales)
        empty = scales.new_zeros(grid.points, grid.count + 1, rows)
        # Where all weights have underflowed, all count alike.
        scales = torch.where(empty.scatter_reduce(1, places, scales, "amax").gather(1, places) > 0, scales, 1.0)
        largest = (
            empty.scatter_reduce(1, places, scales, "amax").gather(1, places).clamp(min=torch.finfo(scales.dtype).tiny)
        )
        weights = scales / largest  # or their squares would underflow
        totals = empty.scatter_add(1, places, weights.square()).gather(1, places)
        signs = random_signs(self._keys, grid.positions, self._seed, "positions", scales.dtype)
        alone = torch.zeros_like(empty).scatter_add(1, places, torch.ones_like(scales)).gather(1, places) == 1
        mixture = torch.where(
            alone, 1.0, signs[..., None] * weights / totals.clamp(min=torch.finfo(scales.dtype).tiny).sqrt()
        )
        return mixture.reshape(-1, rows)


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
    return REDUCTIONS[reduce](scores.reshape(points.grid.points, -1, *scores.shape[1:]))


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
