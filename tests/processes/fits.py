"""Run by several processes: fits of all of them against one on all data."""

import sys

import torch
from torch.utils.data import DataLoader

from running import group, tell
from slu import SLU, FactoredScale, Stream
from together import differences, network, parts, points

LIKELIHOODS = ("classification", "regression", "multilabel")
FEW_FIRST = "few first points"
SOLVERS = {
    "stream": {"rank": 20, "sketch_size": 120},
    "all labels, diagonal scale": {"rank": 20, "solver": Stream(labels_per_point="all"), "scale": "diagonal"},
    FEW_FIRST: {"rank": 8, "scale": FactoredScale(points=40)},
    "lanczos": {"rank": 10, "sketch_size": 120, "solver": "lanczos"},
    "the paper's": {"rank": 10, "sketch_size": 120, "solver": "lanczos", "scale": None, "ridge": 0.0},
    "targets": {"rank": 10, "curvature": "empirical-fisher"},
    "drawn labels": {"rank": 10, "curvature": "fisher", "solver": "lanczos"},
}


def compare(rank: int, size: int, count: int, way: str, calibration: str, *only: str) -> dict:
    found = {}
    for likelihood in LIKELIHOODS:
        data, fresh = points(count, likelihood), points(90, likelihood, seed=5)
        queries = 2 * points(30, likelihood, seed=7).tensors[0]
        given = {"held out": (None, None), "none": (False, False)}.get(calibration)
        given = given or (parts(fresh, rank, size, way), DataLoader(fresh, batch_size=32))
        for name in only or SOLVERS:
            if way != "sampler" and name == FEW_FIRST:  # of other points than the first of all data
                continue
            method = SLU(network(), likelihood, **SOLVERS[name])
            score = method.fit(parts(data, rank, size, way), calibration=given[0])
            one = method.fit(DataLoader(data, batch_size=32), calibration=given[1], group=False)
            found[f"{likelihood}, {name}"] = differences(score, one, queries)
            if name == "stream" and calibration != "none":
                more = points(150, likelihood, seed=11)
                score.partial_fit(parts(more, rank, size, way))
                one.partial_fit(DataLoader(more, batch_size=32), group=False)
                found[f"{likelihood}, continued"] = differences(score, one, queries)
                score.calibrate(parts(fresh, rank, size, way))
                one.calibrate(DataLoader(fresh, batch_size=32), group=False)
                found[f"{likelihood}, calibrated again"] = differences(score, one, queries)
    return found


if __name__ == "__main__":
    with group() as rank:
        tell(compare(rank, torch.distributed.get_world_size(), int(sys.argv[1]), *sys.argv[2:]))
