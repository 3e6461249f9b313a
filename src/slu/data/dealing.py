"""How a sampler deals the points of a data set out to processes: which of all this one has, without copies.

So that all processes have as many points, samplers repeat some of the first ones at the end. These copies are in the
data of one process only if others have one point more, and would count twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DistributedSampler

from slu.errors import DataError

DISPATCHER = "DataLoaderDispatcher"
"""Accelerate's class of loaders of which the first process reads every batch, and sends it to all."""

COPY = -1
"""In the place of a point that the sampler repeats."""


def places(loader: Any) -> Tensor | None:
    """(n,) the places of this process' points in the order of all, without copies at its end; None where unknown."""
    own = dealt(loader)
    return None if own is None else own[own != COPY]


def dealt(loader: Any) -> Tensor | None:
    """(m,) of every point that this process reads its place in the order of all, or that it is a copy.

    None where that is unknown. Known are loaders with a `DistributedSampler`, and what accelerate's `prepare` made
    of a map-style data set; not those with batch samplers of the user's own, nor samplers derived from these that give
    points in an order of their own. Where loaders drop the last points, their places are nobody's.
    """
    shard = _sampler(loader)
    if type(shard).__name__ == "BatchSamplerShard":
        return _of_batches(shard)
    return _of_points(shard) if type(shard) is BatchSampler else None


def order(loader: Any) -> dict[str, Any]:
    """What decides the order of all points by a `DistributedSampler`; nothing of other samplers."""
    sampler = getattr(_sampler(loader), "sampler", None)
    if not isinstance(sampler, DistributedSampler):
        return {}
    shuffled = {"seed": sampler.seed, "epoch": sampler.epoch} if sampler.shuffle else {}
    return {"points": len(sampler.dataset), "shuffle": sampler.shuffle, **shuffled}  # type: ignore[arg-type]


def batch_size(loader: Any) -> int | None:
    """How many points a batch has of a loader whose places are known, the last one aside."""
    shard = _sampler(loader)
    if type(shard).__name__ == "BatchSamplerShard":
        return _part(shard)
    return getattr(shard, "batch_size", None)


def check_dealt(loader: Any, processes: int) -> None:
    """Refuse a loader that is dealt out to another number of processes."""
    shard = getattr(loader, "batch_sampler", None)
    shard = getattr(loader, "sampler", None) if shard is None else shard
    sampler = getattr(shard, "sampler", shard)
    dealt_to = getattr(sampler, "num_replicas", getattr(shard, "num_processes", processes))
    if dealt_to != processes:
        raise DataError(
            f"the loader's sampler deals points out to {dealt_to} processes, and the group has {processes}: pass "
            "DistributedSampler(data, num_replicas=..., rank=...) of the group"
        )


def _sampler(loader: Any) -> Any:
    """That deals batches out; None where one process reads these for all, or they are skipped or come in any order."""
    if (
        type(loader).__name__ == DISPATCHER
        or getattr(loader, "skip_batches", 0)
        or not getattr(loader, "in_order", True)
    ):
        return None
    shard = getattr(loader, "batch_sampler", None)
    # Data sets that take the places of a whole batch have it as their sampler.
    return getattr(loader, "sampler", None) if shard is None else shard


def _of_points(batches: BatchSampler) -> Tensor | None:
    """Of torch's sampler: points are dealt out one by one."""
    sampler = batches.sampler
    if not isinstance(sampler, DistributedSampler) or type(sampler).__iter__ is not DistributedSampler.__iter__:
        return None
    count = sampler.num_samples
    if batches.drop_last:
        count -= count % batches.batch_size
    own = sampler.rank + sampler.num_replicas * torch.arange(count)
    return _marked(own, len(sampler.dataset))  # type: ignore[arg-type]


def _of_batches(shard: Any) -> Tensor | None:
    """Of accelerate's sampler: whole batches are dealt out in turn, or every batch in equal parts."""
    rank, size, whole = shard.process_index, shard.num_processes, shard.batch_sampler
    if type(whole) is not BatchSampler or isinstance(whole.sampler, DistributedSampler):  # the latter deals them twice
        return None
    try:
        points = len(whole.sampler)  # type: ignore[arg-type]
    except TypeError:
        return None
    part = _part(shard)
    turn = part * size
    if shard.drop_last:
        total = points // turn * turn
    else:
        total = -(-points // turn) * turn if shard.even_batches else points
    place = torch.arange(total)
    return _marked(place[place // part % size == rank], points)


def _part(shard: Any) -> int:
    """How many points of a batch of accelerate's are those of one process."""
    each = shard.batch_sampler.batch_size
    return each // shard.num_processes if shard.split_batches else each


def _marked(own: Tensor, points: int) -> Tensor:
    """Places at which copies stand are behind those of all points."""
    return torch.where(own < points, own, COPY)
