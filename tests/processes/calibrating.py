"""Run by two processes: a fit of inputs that repeat, of which one process is killed while it calibrates."""

import os
import signal
import sys

from running import group, tell
from slu import SLU, SluScore
from together import network, points


def fitted(rank: int, path: str, dealt: str, killed: int) -> dict:
    inputs = points(40, "classification").tensors[0].repeat(50, 1)
    own = inputs[rank::2] if dealt == "in turns" else inputs.chunk(2)[rank]
    if killed == rank:
        SluScore.read_uncalibrated = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    score = SLU(network(), "classification", rank=8).fit(own, checkpoint=None if path == "none" else path)
    queries = points(20, "classification", seed=9).tensors[0]
    told = {"pvalue": score.pvalue(queries), "points": score.calibration.points}
    return told | {
        "numbers": sorted(score.state.calibration.reservoir.numbers),
        "missing": score.state.calibration.missing,
    }


if __name__ == "__main__":
    path, dealt, killed = sys.argv[1:]
    with group() as rank:
        tell(fitted(rank, path, dealt, int(killed)))
