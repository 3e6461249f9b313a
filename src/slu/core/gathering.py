"""The scores of all processes: each scores its part of the data, and all get the scores of every part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from slu.core.positions import joined
from slu.data.dealing import COPY, check_dealt, dealt, order
from slu.errors import DataError, EmptyDataError
from slu.processes import Processes


def scores_of_all(processes: Processes, own: Sequence[Tensor], data: Any) -> list[Tensor]:
    """A few tensors (n, ...) of all processes, in the order in which a sampler dealt the points out.

    Where that is not known of some process that has points, those of one process come after the other's, by rank.

    Args:
        processes: Those that share the data.
        own: Tensors (m, ...) of this process; none where it has no points.
        data: What they are the scores of; a loader may tell the places of its points.

    Raises:
        EmptyDataError: No process has points.
        DataError: Two have the same, or their samplers have other orders.

    Cost: the tensors of all, sent once; the same on every process.
    """
    check_dealt(data, processes.size)
    places = dealt(data)
    if own and places is not None and len(places) != len(own[0]):  # what makes batches of points dropped or added some
        places = None
    told = processes.gathered("scores", ([each.cpu() for each in own], places, None if places is None else order(data)))
    with_points = [(rank, scores, places) for rank, (scores, places, _) in enumerate(told) if scores]
    if not with_points:
        raise EmptyDataError(f"the loaders of all {len(told)} processes gave no batch; at least one is needed")
    every = [joined(parts) for parts in zip(*(scores for _, scores, _ in with_points), strict=True)]
    known = [(rank, places) for rank, _, places in with_points if places is not None]
    if len(known) < len(with_points):
        return every
    _check_orders([(rank, told[rank][2]) for rank, _ in known])
    first = _first_to_last(known)
    return [each[first] for each in every]


def _check_orders(orders: Sequence[tuple[int, Any]]) -> None:
    """Refuse samplers of which places are not the same points."""
    (one, expected), *others = orders
    for rank, came in others:
        if came != expected:
            raise DataError(
                f"the samplers of processes {one} and {rank} have other orders, so their places are of other points: "
                f"{expected} and {came}. Give all the same data, shuffle= and seed=, and call set_epoch on all or none"
            )


def _first_to_last(known: Sequence[tuple[int, Tensor]]) -> Tensor:
    """(n,) which of the points, one process' after the other's, comes first, second, and so on; without copies.

    Args:
        known: Ranks of processes, and the places of their points.

    Raises:
        DataError: Two have the same points.
    """
    places, order = torch.cat([places for _, places in known]).sort()
    copies = int((places == COPY).sum())  # are the first
    places, order = places[copies:], order[copies:]
    twice = (places[1:] == places[:-1]).nonzero()
    if len(twice):
        ranks = torch.cat([torch.full_like(own, rank) for rank, own in known])[order]
        one, other = sorted(ranks[int(twice[0]) :][:2].tolist())
        raise DataError(
            f"processes {one} and {other} score the same points, by the samplers of their loaders. Give each process a "
            "part of its own (rank= of DistributedSampler), or gather in a group= of processes whose data differ"
        )
    return order
