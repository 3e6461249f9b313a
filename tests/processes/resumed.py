"""Run by several processes: fits with a checkpoint, of which one process may be killed."""

import os
import signal
import sys

import torch

from running import group, tell
from slu import SLU, Checkpoint
from slu.errors import SluError
from together import network, parts, points

SOLVERS = {
    "stream": {"rank": 8},
    "lanczos": {"rank": 6, "solver": "lanczos"},
    "diagonal": {"rank": 8, "scale": "diagonal"},
}


class Killing:
    """A loader whose process is killed, at a batch of the whole fit."""

    def __init__(self, loader, place: int) -> None:
        self.loader, self.left = loader, place

    def __iter__(self):
        for batch in self.loader:
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            yield batch

    def __len__(self) -> int:
        return len(self.loader)


def fitted(rank: int, size: int, folder: str, solver: str, killed: int, place: int, seed: int = 1) -> dict:
    data = points(700, "classification", seed)
    own = parts(data, rank, size, "sampler") if size > 1 else torch.utils.data.DataLoader(data, 32)
    own = Killing(own, place) if rank == killed else own
    checkpoint = Checkpoint(f"{folder}/{solver}", every=0) if folder != "none" else None
    try:
        score = SLU(network(), "classification", **SOLVERS[solver]).fit(own, checkpoint=checkpoint)
    except SluError as reason:
        return {"error": type(reason).__name__, "text": str(reason)}
    queries = points(20, "classification", seed=9).tensors[0]
    return {"basis": score.state.subspace.basis, "pvalue": score.pvalue(queries), "scores": score(queries)}


if __name__ == "__main__":
    folder, solvers, killed, place, *seed = sys.argv[1:]
    with group() as rank:
        size = torch.distributed.get_world_size()
        given = int(killed), int(place), *map(int, seed)
        tell({solver: fitted(rank, size, folder, solver, *given) for solver in solvers.split(",")})
