"""How far the inputs of every layer are from those of the data: one distance per layer, from one forward pass.

Letters: a (d,) the input of a layer, averaged over positions; L layers; w the width to which longer inputs are folded;
n points; μ (w,) and C (w, w) mean and covariance of the folded inputs over the data. The squared distance
(a - μ)ᵀ C⁻¹ (a - μ) is, up to its scale, the leverage of a in a regression on the layer's inputs. It shows directions
of small variance, which no basis of leading directions of the curvature keeps. The same is kept of a / ‖a‖: inputs of
low contrast are near the mean, and so have a small distance, but the directions of what they cause are unusual.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from slu.artifacts import stored
from slu.budgets import Cost, Size, verified
from slu.data.structure import Inputs
from slu.errors import DamagedFileError
from slu.gradients import LayerInputs, Network
from slu.gradients.layer_inputs import expected_sizes
from slu.seeds import stream

WIDTHS = (64, 32, 16, 8)
"""To which layers are folded: the first with which all fit. On four networks 64 lost at most .002 of the mean AUROC of
the combined reading against 128, and 32 up to .007 against 64."""

MOST_NUMBERS, SHARE = 75_000, 0.25
"""Of all layers, without a budget; and the share of a budget that they may take."""

_RIDGE = 1e-4  # of the variance of every folded input; with 1e-6 to 1e-3 the AUROC moved by at most .006
_FLOOR = 1e-2  # of the root mean square of the deviations, for inputs that hardly vary: units that are never active
_FOLDED = 1 << 18  # numbers that rows are folded to at a time, in float64
_JOINED = 1 << 18  # numbers that are folded at a time
_SHORT = 1e-30  # a length below which an input has no direction
_MEAN, _COVARIANCE = "layers.mean", "layers.covariance"  # names in files


@dataclass(frozen=True)
class Folding:
    """From the inputs of all layers to w numbers of each: sums over w buckets with random signs where d is above w.

    Attributes:
        names: Of the layers' modules.
        sizes: d of every layer.
        width: w.
        seed: Of buckets and signs.
        shapes: How often each layer is called, and the shape of the input of one point; empty before a fit.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    width: int
    seed: int
    shapes: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def within(cls, sizes: Mapping[str, int], numbers: int, seed: int) -> Folding:
        """Of the largest width with which means and covariances of layers, by name, take at most so many numbers."""
        foldings = [cls(tuple(sizes), tuple(sizes.values()), width, seed) for width in WIDTHS]
        return next((each for each in foldings if each.numbers <= numbers), foldings[-1].none())

    def none(self) -> Folding:
        """The same without any layer."""
        return self.subset([])

    def subset(self, names: Sequence[str]) -> Folding:
        """Of some of the layers."""
        places = [self.names.index(name) for name in names]
        sizes = tuple(self.sizes[place] for place in places)
        shapes = tuple(self.shapes[place] for place in places) if self.shapes else ()
        return replace(self, names=tuple(names), sizes=sizes, shapes=shapes)

    def common(self, others: Sequence[Folding]) -> Folding:
        """Of the layers that all have in the same way."""
        common = self
        for folding in others:
            both = [name for name in common.names if name in folding.names]
            common = common.subset([name for name in both if folding.subset([name]) == common.subset([name])])
        return common

    @property
    def shape_of(self) -> dict[str, tuple[int, ...]]:
        """By layer, after a fit."""
        return dict(zip(self.names, self.shapes, strict=True)) if self.shapes else {}

    @property
    def widths(self) -> list[int]:
        """The numbers that are not always zero, of each layer, and then again of each for its directions."""
        return 2 * [min(size, self.width) for size in self.sizes]

    @property
    def numbers(self) -> int:
        """Of all means and covariances."""
        return sum(each * (each + 3) // 2 for each in self.widths)

    def __call__(self, values: Mapping[str, Tensor]) -> Tensor:
        """(2 L, b, w) in float64 of (b, d) by layer: the folded inputs, and these divided by their lengths."""
        first = values[self.names[0]]
        buckets, signs = (each.to(first.device) for each in self._tables)
        folded = first.new_zeros(len(first), len(self.names) * self.width, dtype=torch.float64)
        step = max(1, _JOINED // sum(self.sizes))
        for start in range(0, len(first), step):
            some = torch.cat([values[name][start : start + step] for name in self.names], 1).double()
            folded[start : start + step].scatter_add_(1, buckets.expand_as(some), some.mul_(signs))
        folded = folded.view(len(first), len(self.names), self.width).transpose(0, 1)
        return torch.cat([folded, folded / folded.norm(dim=2, keepdim=True).clamp(min=_SHORT)])

    @cached_property
    def _tables(self) -> tuple[Tensor, Tensor]:
        """The bucket, among those of all layers, and the sign of every input."""
        buckets, signs = [], []
        for layer, (name, size) in enumerate(zip(self.names, self.sizes, strict=True)):
            drawn = stream(self.seed, "folded layer", name)
            order = torch.randperm(size, generator=drawn) if size > self.width else torch.arange(size)
            flips = torch.randint(2, (size,), generator=drawn) if size > self.width else torch.zeros(size)
            buckets.append(order % self.width + layer * self.width)
            signs.append(1.0 - 2.0 * flips.double())
        return torch.cat(buckets), torch.cat(signs)

    def added_to(self, cost: Cost, size: Size) -> Cost:
        """The cost of a fit that keeps these layers: their statistics, sums in float64, and the inputs of a batch.

        A query drops the inputs before it forms gradients, but not before the first batch is verified.
        """
        of = self if size.layers is None else Folding.within(size.layers, self.numbers, self.seed)
        kept, squares, rows = of.numbers * size.bytes_each, 16 * len(of.names) * of.width**2, size.batch * size.groups
        inputs = rows * sum(of.sizes) * size.bytes_each
        folded = 16 * min(_FOLDED, rows * sum(of.widths))  # in float64, and what they are made from
        return replace(
            cost,
            artefact=cost.artefact + kept,
            fitting=cost.fitting + squares + inputs,
            querying=max(cost.querying, cost.artefact + inputs + max(folded, verified(size))) + kept + squares,
        )

    def blocks(self, rows: int) -> Iterator[slice]:
        """Of so many rows those that are folded at a time: of positions there are many more than of inputs."""
        step = max(1, _FOLDED // max(1, 2 * len(self.names) * self.width))
        for start in range(0, rows, step):
            yield slice(start, min(start + step, rows))

    def plain(self) -> dict[str, Any]:
        """For a header."""
        plain = {"names": list(self.names), "sizes": list(self.sizes), "shapes": [list(each) for each in self.shapes]}
        return plain | {"width": self.width, "seed": self.seed}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Folding:
        """What `plain` gave; DamagedFileError where it cannot have."""
        names = stored.texts(plain, "names")
        sizes, rows = (stored.rows(plain, name, len(names)) for name in ("sizes", "shapes"))
        shapes = [tuple(map(int, stored.numbers(rows, place, least=2))) for place in rows]
        for place, (_, *dimensions) in enumerate(shapes):
            if stored.whole(sizes, place, least=1) not in dimensions:
                raise stored.wrong(f"the size of the layer {names[place]!r}", sizes[place], f"one of {dimensions}")
        width, seed = stored.whole(plain, "width", least=1, most=WIDTHS[0]), stored.integer(plain, "seed")
        return cls(tuple(names), tuple(sizes.values()), width, seed, tuple(shapes))


@dataclass(frozen=True, eq=False)
class LayerStatistics:
    """Mean and covariance of the layers' inputs: what is kept of a fit.

    Attributes:
        folding: The layers, and how their inputs are folded.
        points: n.
        mean: (Σ w) one layer after the other.
        covariance: (Σ w (w + 1) / 2) lower triangles, row by row.
    """

    folding: Folding
    points: int
    mean: Tensor
    covariance: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """Of the layers."""
        return self.folding.names

    def to_file(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain data, from which `from_file` makes it again."""
        tensors: dict[str, Tensor] = {_MEAN: self.mean, _COVARIANCE: self.covariance}
        return tensors, self.folding.plain() | {"points": self.points}

    @classmethod
    def from_file(
        cls, tensors: Mapping[str, Tensor], plain: Mapping[str, Any], device: torch.device, dtype: torch.dtype
    ) -> LayerStatistics:
        """What `to_file` gave, on a device and as a type of numbers; DamagedFileError where it cannot have."""
        folding = Folding.from_plain(plain)
        widths = folding.widths
        mean = stored.tensor(tensors, _MEAN, (sum(widths),)).to(device, dtype)
        packed = stored.tensor(tensors, _COVARIANCE, (sum(each * (each + 1) // 2 for each in widths),))
        statistics = cls(folding, stored.whole(plain, "points", least=2), mean, packed.to(device, dtype))
        if not all(bool((covariance.diagonal() >= 0).all()) for _, covariance in statistics.unpacked()):
            raise DamagedFileError(f"{_COVARIANCE} has variances below 0. Fit and save anew")
        return statistics

    def distances(self, values: Mapping[str, Tensor], points: int) -> Tensor:
        """(b, 2 L) squared distances in float64 from (b, d) by layer; NaN for a layer without inputs.

        Inputs that are not finite are infinitely far.
        """
        sizes = dict(zip(self.names, self.folding.sizes, strict=True))
        missing = [name for name, size in sizes.items() if not has_inputs(values, name, size)]
        blank = {name: self.mean.new_zeros(points, sizes[name]) for name in missing}
        mean, root = self._whitening
        parts = []
        for block in self.folding.blocks(points):
            folded = self.folding({name: value[block] for name, value in {**values, **blank}.items()})
            parts.append(torch.bmm(folded - mean[:, None], root).square_().sum(2).T)
        squared = torch.cat(parts).nan_to_num(nan=torch.inf, posinf=torch.inf)
        places = [self.names.index(name) for name in missing]
        squared[:, places + [len(self.names) + place for place in places]] = torch.nan
        return squared

    @cached_property
    def _whitening(self) -> tuple[Tensor, Tensor]:
        """μ (2 L, w) and roots (2 L, w, w) of the inverse covariances, in float64.

        Numerics: every folded input is divided by its deviation, or by a hundredth of the layer's where that is more;
        the ridge then bounds the condition number by 10⁴ w.
        """
        layers, width, device = 2 * len(self.names), self.folding.width, self.mean.device
        means = torch.zeros(layers, width, dtype=torch.float64)
        roots = torch.zeros(layers, width, width, dtype=torch.float64)
        for layer, (mean, covariance) in enumerate(self.unpacked()):
            size = len(mean)
            means[layer, :size] = mean
            deviation = covariance.diagonal().clamp(min=0).sqrt()
            floor = _FLOOR * float(deviation.square().mean().sqrt())
            if not floor:
                continue  # the same for all data
            deviation = deviation.clamp(min=floor)
            correlation = covariance / torch.outer(deviation, deviation)
            values, vectors = torch.linalg.eigh(correlation + _RIDGE * torch.eye(size, dtype=torch.float64))
            roots[layer, :size, :size] = vectors / values.clamp(min=_RIDGE).sqrt() / deviation[:, None]
        return means.to(device), roots.to(device)

    def unpacked(self) -> list[tuple[Tensor, Tensor]]:
        """Mean (w,) and covariance (w, w) of every layer, in float64 on the CPU."""
        layers, mean, packed = [], self.mean.double().cpu(), self.covariance.double().cpu()
        for size in self.folding.widths:
            covariance = torch.zeros(size, size, dtype=torch.float64)
            rows, columns = torch.tril_indices(size, size)
            covariance[rows, columns], packed = packed[: len(rows)], packed[len(rows) :]
            covariance[columns, rows] = covariance[rows, columns]
            layers.append((mean[:size], covariance))
            mean = mean[size:]
        return layers


def watched_distances(layers: LayerStatistics, watch: LayerInputs, inputs: Inputs, outputs: Tensor) -> Tensor:
    """(b, 2 L) of inputs whose forward pass was watched; of outputs at several positions (b·P, 2 L)."""
    watch.finish(inputs, outputs)
    groups, rows = watch.groups, len(outputs) if watch.counted is None else len(watch.counted)
    distances, watch.values = layers.distances(watch.values, rows), {}
    if groups is None:
        return distances
    first = rows // len(outputs) * torch.arange(len(outputs), device=groups.device)[:, None]
    return distances[(groups.clamp(min=0) + first).flatten()]


def expected_layers(network: Network, numbers: int, seed: int) -> Folding:
    """The layers of a network that has not been called yet, with at most so many numbers of all."""
    return Folding.within(expected_sizes(network.model), numbers, seed)


def has_inputs(values: Mapping[str, Tensor], name: str, size: int) -> bool:
    """Whether a layer was called, with inputs of this length."""
    return name in values and values[name].shape[1] == size
