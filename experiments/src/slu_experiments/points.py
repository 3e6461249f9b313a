"""Which points methods are fitted on and judged by, and loaders of them that can be read again and again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor

from slu.seeds import stream
from slu_experiments.data import Normalized, Source, Subset, open_set
from slu_experiments.settings import Setting
from slu_experiments.training import learned_from

FIT_BATCH, TRAIN_BATCH, QUERY_BATCH = 100, 128, 100
_HELD = 1 << 28  # numbers of a set that is held in memory rather than read anew for every pass: a gigabyte
_READ = 2000


@final
class Batches:
    """The points of a source in their order, a batch at a time, as often as one likes.

    Args:
        source: Where from.
        size: Points per batch; the last one may be smaller.
        hold: Whether batches are kept once they were read, where all of them fit into a gigabyte.
        channels_last: Whether images have their channels innermost, which a recipe says of its network: a product with
            the curvature of a ResNet takes a quarter less, and is rounded otherwise.

    Cost: one batch; with `hold`, all of them.
    """

    def __init__(self, source: Source, size: int, *, hold: bool = False, channels_last: bool = False) -> None:
        self._source, self._places = source, torch.arange(len(source)).split(size)
        self._held: list[tuple[Tensor, Tensor]] | None = None
        self._hold = hold and len(source) * math.prod(source.shape) <= _HELD
        self._channels_last = channels_last

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self._hold and self._held is None:
            self._held = [self._read(places) for places in self._places]
        if self._held is not None:
            return iter(self._held)
        return (self._read(places) for places in self._places)

    def _read(self, places: Tensor) -> tuple[Tensor, Tensor]:
        inputs, targets = self._source.read(places)
        return inputs.contiguous(memory_format=torch.channels_last) if self._channels_last else inputs, targets


def fit_source(setting: Setting, points: int | None, root: str | None) -> Source:
    """So many points to fit on, the same for every network; of classes equally many each.

    Args:
        setting: Whose.
        points: n; None for all.
        root: Where the data are.

    Cost: every point is read once for its label, a few thousand at a time.
    """
    source = learned_from(setting, root)
    if points is None or points >= len(source):
        return source
    generator = stream(0, "fit points")
    if setting.likelihood == "classification" and len(source) <= 10**6:
        return Subset(source, balanced(_labels(source), points, generator))
    return Subset(source, torch.randperm(len(source), generator=generator)[:points])


def query_source(name: str, setting: Setting, queries: int | None, root: str | None) -> Source:
    """Test points of a set, normalized as the setting's own data: all, or some drawn at random.

    Sets of equal length give the points at equal places, so an image is drawn together with its rotations.
    """
    source = Normalized(open_set(name, "test", root), setting.mean, setting.std)
    if queries is None or queries >= len(source):
        return source
    drawn = torch.randperm(len(source), generator=stream(0, "queries"))[:queries]
    return Subset(source, drawn.sort().values)


def balanced(labels: Tensor, points: int, generator: torch.Generator) -> Tensor:
    """Places of so many points, of every class as many as there are or as its share allows, in random order.

    >>> places = balanced(torch.tensor([0, 0, 0, 0, 1, 1]), 4, stream(0, "example"))
    >>> torch.tensor([0, 0, 0, 0, 1, 1])[places].sort().values.tolist()
    [0, 0, 1, 1]
    """
    order = torch.randperm(len(labels), generator=generator)
    seen: dict[int, int] = {}
    turns = []
    for label in labels[order].tolist():
        turns.append(seen.get(label, 0))
        seen[label] = turns[-1] + 1
    # Every class's first point, then every class's second, and so on.
    chosen = order[torch.tensor(turns).argsort(stable=True)][:points]
    return chosen[torch.randperm(len(chosen), generator=generator)]


def _labels(source: Source) -> Tensor:
    return torch.cat([source.read(places)[1] for places in torch.arange(len(source)).split(_READ)])
