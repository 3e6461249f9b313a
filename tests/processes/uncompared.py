"""Run by several processes: a fit that is stopped, goes on without comparing other data, and is compared then."""

import sys

import torch

from running import group, tell
from slu import SLU, Checkpoint
from slu.errors import SluError
from together import network, parts, points


class Stopped:
    """A loader that ends with an error after two batches."""

    def __init__(self, loader) -> None:
        self.loader = loader

    def __iter__(self):
        for place, batch in enumerate(self.loader):
            if place == 2:
                raise OSError("stopped")
            yield batch


def ended(path: str, loader, *, check: bool = True) -> str:
    """How a fit ends."""
    try:
        score = SLU(network(), "classification", rank=8, scale=None)
        score.fit(loader, calibration=False, checkpoint=Checkpoint(path, every=0, check_data=check))
    except SluError as reason:
        return str(reason)
    return "done"


if __name__ == "__main__":
    with group() as rank:
        size = torch.distributed.get_world_size()
        old, new = (parts(points(300, "classification", seed), rank, size, "sampler") for seed in (1, 2))
        path = f"{sys.argv[1]}/run"
        tell(
            {
                "stopped": ended(path, Stopped(old)),
                "went on": ended(path, new, check=False),
                "compared": ended(path, new),
                "not compared": ended(path, new, check=False),
            }
        )
