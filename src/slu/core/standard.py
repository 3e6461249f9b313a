"""Readings standardized on calibration points, and their soft maximum: the combined reading.

An input is suspicious if any view of it is. A sum would let one very sure view cancel the others: far from the data the
Fisher factor of a network with ReLUs vanishes, and the reading "fisher" with it.

The views and the temperature were chosen on eight networks, as those whose mean AUROC over a network's shifts was least
below the best detector's (max logit, energy, entropy, distances of features and others) on the network where that was
worst. They are the same for all networks; docs/readings.md has the networks on which they were judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from slu.artifacts import stored

COMBINED, DISTANCE, ANGLE = "combined", "distance", "angle"

LAYERED = (DISTANCE, ANGLE)
"""The readings that are made of the inputs of layers."""

VIEWS = (("fisher", "fisher-relative"), ("entropy",), (DISTANCE,), (ANGLE,))
"""The combined reading is the soft maximum of these; a view is the sum of its readings over the root of their count."""

WITHOUT_LAYERS = (*VIEWS[:2], ("variance",))
"""The views where a network has no layers whose inputs could be kept; nothing else tells that an input is far away."""

TEMPERATURE = 0.5
"""Of the soft maximum: at 0 it is the largest view. From 0.25 to 1 the mean over the eight networks moved by .001."""

_FLOOR = 1e-3  # relative to the smallest positive score of the calibration points
_CONSTANT = 1e-12  # deviation of scores that are all equal, relative to their mean, where their rounding is not known
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class ReadingScale:
    """Standardizes one reading, or its logarithm if it is positive, to mean 0 and deviation 1 on calibration points.

    Attributes:
        mean, deviation: On the calibration points.
        floor: Lower scores are raised to this before the logarithm, because a score can underflow to 0; a thousandth
            of the smallest positive calibration score. None for no logarithm.
    """

    mean: float
    deviation: float
    floor: float | None

    @classmethod
    def of(cls, scores: Tensor, positive: bool, rounding: float = 0.0) -> ReadingScale | None:
        """From (m,) scores of calibration points; None where they are all equal up to rounding, or not all finite.

        Numerics: float64. `rounding` is relative for a positive reading, otherwise to the scores' mean size.
        """
        values, floor = scores.double(), None
        if positive:
            above = values[values > 0]
            floor = max(_FLOOR * float(above.min()) if len(above) else 1.0, _TINY)
            values = values.clamp(min=floor).log()
        mean, deviation = float(values.mean()), float(values.std()) if len(values) > 1 else 0.0
        noise = rounding if positive else rounding * float(values.abs().mean())
        varies = math.isfinite(deviation) and deviation > max(noise, _CONSTANT * max(1.0, abs(mean)))
        return cls(mean, deviation, floor) if varies else None

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ReadingScale:
        """From the fields of a file; DamagedFileError where they cannot be."""
        floor = None if stored.field(plain, "floor") is None else stored.number(plain, "floor", above=0.0)
        return cls(stored.number(plain, "mean"), stored.number(plain, "deviation", above=0.0), floor)

    def __call__(self, scores: Tensor) -> Tensor:
        """(n,) standardized, float64."""
        values = scores.double()
        values = values if self.floor is None else values.clamp(min=self.floor).log()
        return (values - self.mean) / self.deviation


@dataclass(frozen=True)
class LayerScales:
    """Standardizes the distances of L layers and of their directions; None for one that is equal for all points.

    Attributes:
        scales: Of the L distances, and then of the L distances of directions.
    """

    scales: Sequence[ReadingScale | None]

    @classmethod
    def of(cls, distances: Tensor, rounding: Sequence[float] | None = None) -> LayerScales:
        """From (m, 2 L) squared distances of calibration points, and the rounding of each."""
        noise = [0.0] * distances.shape[1] if rounding is None else rounding
        return cls([ReadingScale.of(each, True, own) for each, own in zip(distances.T, noise, strict=True)])

    def __call__(self, distances: Tensor) -> Tensor:
        """(n, 2 L) standardized logarithms, float64; NaN where there is no information."""
        floor, mean, deviation = (each.to(distances.device) for each in self._columns)
        return distances.double().clamp(min=floor).log_().sub_(mean).div_(deviation)

    @cached_property
    def _columns(self) -> tuple[Tensor, ...]:
        """Floors, means and deviations (2 L,), all layers at once; NaN for those without information."""
        fields = ("floor", "mean", "deviation")
        values = [[torch.nan if each is None else getattr(each, name) for each in self.scales] for name in fields]
        return tuple(torch.tensor(each, dtype=torch.float64) for each in values)

    def farthest(self, distances: Tensor, reading: str) -> Tensor:
        """(n,) the soft maximum over layers, for one of the two readings; NaN where there is no information."""
        distance, angle = self(distances).tensor_split(2, 1)
        return soft_maximum(distance if reading == DISTANCE else angle, 1)


@dataclass(frozen=True)
class Standard:
    """The views of the combined reading, and the scale of every reading in them.

    Both are stored with a calibration, so that another table of views changes no fitted score.

    Attributes:
        scales: By reading.
        views: Each a few readings.
        layers: Of the distances that the readings "distance" and "angle" are made of; None without them.
        temperature: Of the soft maximum.
    """

    scales: Mapping[str, ReadingScale]
    views: Sequence[Sequence[str]] = VIEWS
    layers: LayerScales | None = None
    temperature: float = TEMPERATURE

    @classmethod
    def of(
        cls,
        scores: Mapping[str, Tensor],
        positive: Mapping[str, bool],
        layers: LayerScales | None,
        rounding: Mapping[str, float] | None = None,
    ) -> Standard:
        """From (m,) scores of calibration points by reading, whether each reading is positive, and its rounding.

        A reading without information, because it is missing, the same for all points or not finite, is left out. If
        all are, as of a network whose outputs are constant, they count as they are, and so do all points.
        """
        every = {name for view in (*VIEWS, *WITHOUT_LAYERS) for name in view}
        noise = rounding or {}
        scaled = {n: ReadingScale.of(scores[n], positive[n], noise.get(n, 0.0)) for n in every if n in scores}
        table = VIEWS if scaled.get(DISTANCE) or scaled.get(ANGLE) else WITHOUT_LAYERS
        given = {name: scores[name] for view in table for name in view if name in scores}
        scales = {name: scale for name in given if (scale := scaled[name]) is not None}
        if not scales:
            scales = {name: ReadingScale(0.0, 1.0, None) for name, each in given.items() if bool(each.isfinite().all())}
        views = [[name for name in view if name in scales] for view in table]
        return cls(scales, [view for view in views if view], layers)

    def standardized(self, scores: Mapping[str, Tensor]) -> Tensor:
        """(views, n) standardized, float64; scores (n, q) give as many. A view that is not a number is NaN."""
        views = []
        for view in self.views:
            parts = [self.scales[name](scores[name]) for name in view]
            views.append(sum(parts[1:], parts[0]) / math.sqrt(len(view)))
        return torch.stack(torch.broadcast_tensors(*views))

    def combined(self, scores: Mapping[str, Tensor]) -> Tensor:
        """(n,) the soft maximum of the views; NaN where a reading of gradients or outputs is not a number.

        A layer that an input does not reach says nothing about it; a reading that overflowed must not be left out.
        """
        views = self.standardized(scores)
        layered = torch.tensor([set(view) <= set(LAYERED) for view in self.views], device=views.device)
        overflowed = views[~layered].isnan().any(0)
        return soft_maximum(views, 0, self.temperature).masked_fill(overflowed, torch.nan)

    def to_plain(self) -> dict[str, Any]:
        """For a header."""
        layers = None if self.layers is None else [each and vars(each) for each in self.layers.scales]
        scales = {name: vars(scale) for name, scale in self.scales.items()}
        views = [list(view) for view in self.views]
        return {"standard": scales, "views": views, "layers": layers, "temperature": self.temperature}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Standard:
        """What `to_plain` gave; files from before the distances of layers have none, and a temperature of 1.

        Raises:
            DamagedFileError: It cannot have.
        """
        layers, standard = None, stored.table(plain, "standard")
        scales = {name: ReadingScale.from_plain(stored.table(standard, name)) for name in standard}
        if plain.get("layers") is not None:
            said = stored.rows(plain, "layers")
            known = [None if each is None else stored.table(said, place) for place, each in said.items()]
            layers = LayerScales([None if each is None else ReadingScale.from_plain(each) for each in known])
            if any(each is not None and each.floor is None for each in layers.scales):
                raise stored.wrong("floor", None, "a number above 0, as of every layer")
        views = stored.rows(plain, "views")
        named = [stored.texts(views, place) for place in views]
        if not named or not all(view and scales.keys() >= set(view) for view in named):
            raise stored.wrong("views", named, f"lists of {', '.join(scales)}")
        temperature = stored.number(plain, "temperature", above=0.0) if "temperature" in plain else 1.0
        return cls(scales, named, layers, temperature)


def soft_maximum(values: Tensor, dim: int, temperature: float = TEMPERATURE) -> Tensor:
    """T log Σ exp(·/T) over a dimension; what is NaN is left out, and the result is NaN where all is.

    >>> soft_maximum(torch.tensor([[0.0, 0.0], [1.0, torch.nan]]), 1, 1.0)
    tensor([0.6931, 1.0000])
    """
    nothing = values.isnan()
    highest = temperature * (values / temperature).masked_fill(nothing, -torch.inf).logsumexp(dim)
    return highest.masked_fill(nothing.all(dim), torch.nan)
