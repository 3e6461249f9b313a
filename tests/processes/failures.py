"""Run by several processes: fits that one of them cannot do, one after the other in the same group."""

import sys
import time
import warnings

import torch
from torch.utils.data import DataLoader

from running import group, tell
from slu import SLU
from slu.errors import SluError
from together import network, parts, points

ENDLESS = 400
"""Batches of 0.1 s, which nobody waits for."""


def failing(loader, after: int):
    """A loader that fails."""
    for place, batch in enumerate(loader):
        if place == after:
            raise OSError("the disk is gone")
        yield batch


def slow(loader):
    """A loader of a long pass."""
    for _ in range(ENDLESS):
        for batch in loader:
            time.sleep(0.1)
            yield [each + torch.randn(1).item() if each.is_floating_point() else each for each in batch]


class Interrupted:
    def __init__(self, loader) -> None:
        self.loader = loader

    def __iter__(self):
        yield next(iter(self.loader))
        raise KeyboardInterrupt


def cases(rank: int, size: int) -> dict:
    data = points(200, "classification")
    own = parts(data, rank, size, "sampler")
    all_of = DataLoader(data, batch_size=16)
    shuffled = DataLoader(data, batch_size=16, shuffle=True)
    first, last = rank == 0, rank == size - 1
    other = network()
    torch.nn.init.zeros_(other[0].bias) if last else None
    nan = points(200, "classification")
    nan.tensors[0][150 + rank] = float("nan")
    return {
        "a loader fails": (network(), {}, failing(own, 2) if last else slow(own)),
        "at the first batch": (network(), {}, failing(own, 0) if first else own),
        "not finite": (network(), {}, parts(nan, rank, size, "cut")),
        "the same data": (network(), {}, all_of),
        "the same data, shuffled, no scale": (network(), {"scale": None}, shuffled),
        "no data": (network(), {}, []),
        "other settings": (network(), {"rank": 5 + rank}, own),
        "other weights": (other, {}, own),
        "a rank above the data": (network(), {"rank": 100}, parts(points(90, "classification"), rank, size, "sampler")),
        "interrupted": (network(), {}, Interrupted(own) if last else slow(own)),
        "sound": (network(), {}, own if not last else []),
        "sound, tiny": (network(), {}, parts(points(7, "classification"), rank, size, "sampler")),
    }


def outcome(model, settings, loader) -> dict:
    begun = time.monotonic()
    try:
        score = SLU(model, "classification", **({"rank": 4} | settings)).fit(loader)
        told = {"points": score.state.points, "sum": float(score(points(5, "classification").tensors[0]).sum())}
    except SluError as reason:
        told = {"error": type(reason).__name__, "text": str(reason)}
    except KeyboardInterrupt:
        told = {"error": "KeyboardInterrupt", "text": ""}
    return told | {"seconds": time.monotonic() - begun}


if __name__ == "__main__":
    with group() as rank:
        warnings.simplefilter("ignore")
        wanted = cases(rank, torch.distributed.get_world_size())
        tell({name: outcome(*case) for name, case in wanted.items() if name in sys.argv[1:] or len(sys.argv) == 1})
