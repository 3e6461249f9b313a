"""Run by several processes: fits with a checkpoint, of which one process may be killed."""

import logging
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


class Said(logging.Handler):
    """What the library logs from now on."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        logging.getLogger("slu").setLevel(logging.INFO)
        logging.getLogger("slu").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def fitted(
    rank: int, size: int, folder: str, solver: str, empty: int, killed: int = -1, place: int = 0, seed: int = 1
) -> dict:
    data = points(700, "classification", seed)
    own = parts(data, rank, size, "sampler") if size > 1 else torch.utils.data.DataLoader(data, 32)
    if size == 2 and empty >= 0:  # the other has all
        own = [] if rank == empty else torch.utils.data.DataLoader(data, 16)
    own = Killing(own, place) if rank == killed else own
    checkpoint = Checkpoint(f"{folder}/{solver}", every=0) if folder != "none" else None
    said = Said()
    try:
        score = SLU(network(), "classification", **SOLVERS[solver]).fit(own, checkpoint=checkpoint)
    except SluError as reason:
        return {"error": type(reason).__name__, "text": str(reason)}
    queries = points(20, "classification", seed=9).tensors[0]
    told = {"basis": score.state.subspace.basis, "pvalue": score.pvalue(queries), "scores": score(queries)}
    return told | {"continued": any("continuing from the checkpoint" in each for each in said.texts)}


if __name__ == "__main__":
    folder, solver, *given = sys.argv[1:]
    with group() as rank:
        tell(fitted(rank, torch.distributed.get_world_size(), folder, solver, *map(int, given)))
