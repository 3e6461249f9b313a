"""Run by test_stream_peak.py in a fresh process: the peak memory of a one-pass fit on so many points, as JSON."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from measure_peak import reset_peak, status

from networks import NETWORKS
from slu import SLU

BATCH, RANK, SIZE = 8, 8, 5000


class Points:
    """Batches that are made when they are asked for; `hold` keeps as much of every point as its sketch."""

    def __init__(self, shape: torch.Size, count: int, hold: bool) -> None:
        self.shape, self.count, self.hold = shape, count, hold
        self.held: list[torch.Tensor] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        draw = torch.Generator().manual_seed(0)
        for _ in range(self.count // BATCH):
            if self.hold:
                self.held.append(torch.ones(BATCH, SIZE))
            yield torch.randn(BATCH, *self.shape[1:], generator=draw)


def main(kind: str, points: int, hold: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, inputs = NETWORKS[kind](300_000)
    method = SLU(model, "classification", rank=RANK, sketch="shift", sketch_size=SIZE, scale=None)
    # A whole fit first: pools, kernels, and whatever is made once.
    method.fit(Points(inputs.shape, 2 * BATCH, hold=False), calibration=False, progress=False)
    before = reset_peak()
    score = method.fit(Points(inputs.shape, points, bool(hold)), calibration=False, progress=False)
    peak = status("VmHWM") - before
    print(json.dumps({"peak": peak, "points": score.diagnostics.points, "planned": method.cost(batch=BATCH).fitting}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
