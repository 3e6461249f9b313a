"""Run by several processes: fits of all of them against one on all data."""

import json
import sys

import torch
from torch.utils.data import DataLoader

from running import group, tell
from slu import SLU, FactoredScale, Stream
from together import answers, differences, network, parts, points

LIKELIHOODS = ("classification", "regression", "multilabel")
FEW_FIRST = "few first points"
BATCH = 32  # of each process; small ones take most of the time
SOLVERS = {
    "stream": {"rank": 20, "sketch_size": 120},
    "all labels, diagonal scale": {"rank": 20, "solver": Stream(labels_per_point="all"), "scale": "diagonal"},
    FEW_FIRST: {"rank": 8, "scale": FactoredScale(points=40)},
    "lanczos": {"rank": 10, "sketch_size": 120, "solver": "lanczos"},
    "the paper's": {"rank": 10, "sketch_size": 120, "solver": "lanczos", "scale": None, "ridge": 0.0},
    "targets": {"rank": 10, "curvature": "empirical-fisher"},
    "drawn labels": {"rank": 10, "curvature": "fisher", "solver": "lanczos"},
}


def told_by_first(answered: dict | None) -> dict:
    """What the first process found, in all: it fits all data for them."""
    told = [answered]
    torch.distributed.broadcast_object_list(told)
    return told[0]


def compare(rank: int, size: int, count: int, way: str, calibration: str, *only: str) -> dict:
    found = {}
    for likelihood in LIKELIHOODS:
        data, fresh = points(count, likelihood), points(90, likelihood, seed=5)
        queries = 2 * points(30, likelihood, seed=7).tensors[0]
        given = {"held out": (None, None), "none": (False, False)}.get(calibration)
        given = given or (parts(fresh, rank, size, way, BATCH), DataLoader(fresh, batch_size=2 * BATCH))

        def compared(score, one, queries=queries):
            return differences(score, told_by_first(answers(one, queries) if rank == 0 else None), queries)

        for name in only or SOLVERS:
            if way != "sampler" and name == FEW_FIRST:  # of other points than the first of all data
                continue
            method = SLU(network(), likelihood, **SOLVERS[name])
            score, one = method.fit(parts(data, rank, size, way, BATCH), calibration=given[0]), None
            if rank == 0:
                one = method.fit(DataLoader(data, batch_size=2 * BATCH), calibration=given[1], group=False)
            found[f"{likelihood}, {name}"] = compared(score, one)
            if name == "stream" and calibration != "none":
                more = points(150, likelihood, seed=11)
                score.partial_fit(parts(more, rank, size, way, BATCH))
                if rank == 0:
                    one.partial_fit(DataLoader(more, batch_size=2 * BATCH), group=False)
                found[f"{likelihood}, continued"] = compared(score, one)
                score.calibrate(parts(fresh, rank, size, way, BATCH))
                if rank == 0:
                    one.calibrate(DataLoader(fresh, batch_size=2 * BATCH), group=False)
                found[f"{likelihood}, calibrated again"] = compared(score, one)
    return found


if __name__ == "__main__":
    with group() as rank:
        tell([compare(rank, torch.distributed.get_world_size(), *case) for case in json.loads(sys.argv[1])])
