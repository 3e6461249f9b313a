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
_MEAN, _COVARIANCE, _SCATTER = "layers.mean", "layers.covariance", "layers.scatter"  # names in files


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
        missing = [name for name, size in sizes.items() if not _has(values, name, size)]
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


class LayerSums:
    """Sums over the batches of a fit, of which the statistics are made.

    Args:
        network: Whose layers are watched.
        numbers: That may be kept of all layers.
        seed: Of the folding.

    Attributes:
        watch: Records a batch; `add` takes what it recorded.

    Cost: 2 L (w² + w) numbers in float64, and as many while a batch is added.

    Numerics: means and squares are about the mean of the points so far, in float64.
    """

    def __init__(self, network: Network, numbers: int, seed: int) -> None:
        self._numbers, self._seed = numbers, seed
        self._device = network.selection.device
        self._dtype = network.selection.dtype
        self._points = 0
        self._folding: Folding | None = None
        self.watch = LayerInputs(network)

    def begin_with(self, *before: LayerStatistics | None) -> None:
        """Go on from the statistics of earlier points, with the layers that all of them have in the same way."""
        known = [each.folding for each in before if each is not None]
        common = known[0] if known and len(known) == len(before) else Folding((), (), WIDTHS[0], self._seed)
        for folding in known:
            both = [name for name in common.names if name in folding.names]
            common = common.subset([name for name in both if folding.subset([name]) == common.subset([name])])
        self._begin(common)
        for each in before if common.names else ():
            assert each is not None
            self._add_statistics(each)

    def add(self) -> None:
        """Add the batch that was recorded last. A layer that has no inputs in it is left out from now on."""
        values, counted = self.watch.values, self.watch.counted
        # Groups of positions, of which some inputs have fewer.
        counts = None if counted is None else counted.nonzero()[:, 0]
        if counts is not None and not len(counts):
            return
        if self._folding is None:
            sizes = {name: value.shape[1] for name, value in values.items()}
            folding = Folding.within(sizes, self._numbers, self._seed)
            self._begin(replace(folding, shapes=tuple(self.watch.shapes[name] for name in folding.names)))
        folding = self._folding
        assert folding is not None
        known = zip(folding.names, folding.sizes, strict=True)
        present = [name for name, size in known if _has(values, name, size)]
        if len(present) < len(folding.names):
            folding = self._keep(present)
        if not folding.names:
            return
        rows = len(values[folding.names[0]]) if counts is None else len(counts)
        for block in folding.blocks(rows):
            some = block if counts is None else counts[block]
            folded = folding({name: values[name][some] for name in folding.names})
            mean = folded.mean(1)
            centred = folded - mean[:, None]
            self._join(folded.shape[1], mean, torch.bmm(centred.mT, centred))

    def statistics(self) -> LayerStatistics | None:
        """Of all that was added; None where no layer is left."""
        if self._folding is None or self._points < 2:
            return None
        # In the numbers' own type: a variance of 1e40 is none in float32.
        finite = (self._scatter / (self._points - 1)).to(self._dtype).isfinite().flatten(1).all(1).view(2, -1).all(0)
        names = [name for name, each in zip(self._folding.names, finite.tolist(), strict=True) if each]
        folding = self._folding if len(names) == len(finite) else self._keep(names)
        if not folding.names:
            return None
        lower = [torch.tril_indices(size, size, device=self._device) for size in folding.widths]
        covariances = [each[rows, columns] for each, (rows, columns) in zip(self._scatter, lower, strict=True)]
        means = [each[:size] for each, size in zip(self._mean, folding.widths, strict=True)]
        packed = torch.cat(covariances) / (self._points - 1)
        return LayerStatistics(folding, self._points, torch.cat(means).to(self._dtype), packed.to(self._dtype))

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        """Tensors, not copied, and plain data for a checkpoint."""
        if self._folding is None:
            return {}, None
        tensors: dict[str, Tensor] = {_MEAN: self._mean, _SCATTER: self._scatter}
        return tensors, self._folding.plain() | {"points": self._points}

    def restore(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any] | None) -> None:
        """Go on from what `snapshot` gave; DamagedFileError where it cannot have."""
        if plain is not None:
            self._begin(Folding.from_plain(plain))
            self._points, wide = stored.whole(plain, "points"), torch.float64
            self._mean = stored.tensor(tensors, _MEAN, self._mean.shape, wide).to(self._device)
            self._scatter = stored.tensor(tensors, _SCATTER, self._scatter.shape, wide).to(self._device)

    def _begin(self, folding: Folding) -> None:
        self._folding = folding
        layers, width = 2 * len(folding.names), folding.width
        self.watch.restrict(folding.names, folding.shape_of)
        self._mean = torch.zeros(layers, width, dtype=torch.float64, device=self._device)
        self._scatter = torch.zeros(layers, width, width, dtype=torch.float64, device=self._device)

    def _keep(self, names: Sequence[str]) -> Folding:
        before = self._folding
        assert before is not None
        places = [before.names.index(name) for name in names]
        self._folding = before.subset(names)
        self.watch.restrict(names)
        both = [*places, *(len(before.names) + place for place in places)]
        self._mean, self._scatter = self._mean[both], self._scatter[both]
        return self._folding

    def _join(self, points: int, mean: Tensor, scatter: Tensor) -> None:
        """Add so many points with means (2 L, w) and sums (2 L, w, w) of products of deviations from these."""
        total = self._points + points
        apart = mean - self._mean
        self._scatter += scatter
        self._scatter.baddbmm_(apart[:, :, None], apart[:, None], alpha=self._points * points / total)
        self._mean += apart * (points / total)
        self._points = total

    def _add_statistics(self, other: LayerStatistics) -> None:
        mean, scatter = torch.zeros_like(self._mean), torch.zeros_like(self._scatter)
        assert self._folding is not None
        places = [other.names.index(name) for name in self._folding.names]
        parts = other.unpacked()
        for layer, place in enumerate([*places, *(len(other.names) + each for each in places)]):
            own, covariance = parts[place]
            mean[layer, : len(own)] = own
            scatter[layer, : len(own), : len(own)] = covariance * (other.points - 1)
        self._join(other.points, mean, scatter)


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


def _has(values: Mapping[str, Tensor], name: str, size: int) -> bool:
    return name in values and values[name].shape[1] == size
