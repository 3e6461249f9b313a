"""Sums over the inputs of every layer while data are fitted, of which their means and covariances are made.

Letters: L layers; w the width to which inputs are folded (`slu.core.distances`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from slu.artifacts import stored
from slu.core.distances import WIDTHS, Folding, LayerStatistics, has_inputs
from slu.gradients import LayerInputs, Network
from slu.processes import Processes

_MEAN, _SCATTER = "layers.mean", "layers.scatter"  # names in files


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

    def begin_with(self, *before: LayerStatistics | None, counted: bool = True) -> None:
        """Go on from the statistics of earlier points, with the layers that all of them have in the same way.

        Of several processes one counts these points, the others only have the layers.
        """
        known = [each.folding for each in before if each is not None]
        common = Folding((), (), WIDTHS[0], self._seed)
        if known and len(known) == len(before):
            common = known[0].common(known)
        self._begin(common)
        for each in before if common.names and counted else ():
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
        present = [name for name, size in known if has_inputs(values, name, size)]
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

    def pool(self, processes: Processes) -> None:
        """Join the sums of all processes, for the layers that all of them have that have points."""
        own = None if self._folding is None or not self._points else (self._folding.plain(), self._points)
        told = [each for each in processes.gathered("layers", own) if each is not None]
        if processes.size == 1 or not told:
            return
        first, *others = (Folding.from_plain(plain) for plain, _ in told)
        names = first.common(others).names
        self._begin(first.subset(names)) if own is None else self._keep(names)
        total = sum(points for _, points in told)
        mean = self._mean * (self._points / total)
        processes.add_up([mean])
        apart = self._mean - mean
        self._scatter.baddbmm_(apart[:, :, None], apart[:, None], alpha=self._points)
        processes.add_up([self._scatter])
        self._mean, self._points = mean, total

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
