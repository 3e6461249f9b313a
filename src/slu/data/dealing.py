"""How a sampler deals the points of a data set out to processes: which of all this one has, without copies.

So that all processes have as many points, samplers repeat some of the first ones at the end. These copies are in the
data of one process only if others have one point more, and would count twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler


def places(loader: Any) -> Tensor | None:
    """(n,) the places of this process' points in the order of all, without copies at its end; None where unknown.

    Known are loaders with a `DistributedSampler`, and those that accelerate's `prepare` made of a map-style data set.
    """
    sampler, shard = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    if isinstance(sampler, DistributedSampler) and getattr(shard, "drop_last", True) is False:
        total = sampler.total_size if sampler.drop_last else len(sampler.dataset)  # type: ignore[arg-type]
        return torch.arange(sampler.rank, total, sampler.num_replicas)
    if type(shard).__name__ == "BatchSamplerShard" and not getattr(shard, "drop_last", True):
        return _of_batches(shard)
    return None


def _of_batches(shard: Any) -> Tensor | None:
    """Of accelerate's sampler: whole batches are dealt out in turn, or every batch in equal parts."""
    rank, size, whole = shard.process_index, shard.num_processes, shard.batch_sampler
    batch, points = getattr(whole, "batch_size", None), getattr(whole, "sampler", None)
    if batch is None or points is None:
        return None
    if shard.split_batches:
        batch //= size
    place = torch.arange(len(points))
    return place[place // batch % size == rank]
