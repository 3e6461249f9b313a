"""Run by two processes: a fit of parts that share some points, calibrated again on what it held out."""

import torch

from running import group, tell
from slu import SLU
from together import network, points


def contents(score) -> list[tuple[float, ...]]:
    return sorted(tuple(point.inputs[0].tolist()) for point in score.state.calibration.reservoir.points)


def compare(rank: int) -> dict[str, list]:
    one, two, both = points(900, "classification").tensors[0].split([300, 300, 300])
    parts = [torch.cat([each, both[:100]]) for each in (one, two)]
    method = SLU(network(), "classification", rank=8, scale=None)
    score = method.fit(parts[rank])
    found = {"held out": contents(score)}
    found["again, by both"] = contents(score.calibrate(parts[rank], held_out=True))
    found["again, by one"] = contents(score.calibrate(torch.cat(parts), held_out=True, group=False))
    alone = method.fit(torch.cat(parts), group=False)
    found["held out by one"] = contents(alone)
    found["of one, by one"] = contents(alone.calibrate(torch.cat(parts).flip(0), held_out=True, group=False))
    found["of one, by both"] = contents(alone.calibrate(parts[rank], held_out=True))
    return found


if __name__ == "__main__":
    with group() as rank:
        tell(compare(rank))
