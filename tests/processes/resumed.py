"""Run by several processes: fits with a checkpoint, of which one process may be killed."""

from __future__ import annotations

import logging
import os
import signal
import sys

import torch

from running import group, tell
from slu import SLU, Checkpoint
from slu.errors import SluError
from slu.subspace import SketchedVectors
from together import network, parts, points

SOLVERS = {
    "stream": {"rank": 8},
    "lanczos": {"rank": 6, "solver": "lanczos"},
    "diagonal": {"rank": 8, "scale": "diagonal"},
}


BATCH, AFTER_LAST_STEP = 32, -1


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
    """What the library logs within the block."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._logger = logging.getLogger("slu")
        self._before = self._logger.level

    def __enter__(self) -> Said:
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._before)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def fitted(
    rank: int, size: int, folder: str, solver: str, empty: int, killed: int = -1, place: int = 0, seed: int = 1
) -> dict:
    data = points(700, "classification", seed)
    own = parts(data, rank, size, "sampler", BATCH) if size > 1 else torch.utils.data.DataLoader(data, 2 * BATCH)
    if size == 2 and empty >= 0:  # the other has all
        own = [] if rank == empty else torch.utils.data.DataLoader(data, BATCH)
    if rank == killed and place == AFTER_LAST_STEP:
        SketchedVectors.subspace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    own = Killing(own, place) if rank == killed else own
    checkpoint = Checkpoint(f"{folder}/{solver}", every=0) if folder != "none" else None
    try:
        with Said() as said:
            score = SLU(network(), "classification", **SOLVERS[solver]).fit(own, checkpoint=checkpoint)
    except SluError as reason:
        return {"error": type(reason).__name__, "text": str(reason)}
    queries = points(20, "classification", seed=9).tensors[0]
    told = {"basis": score.state.subspace.basis, "pvalue": score.pvalue(queries), "scores": score(queries)}
    return told | {"continued": any("continuing from the checkpoint" in each for each in said.texts)}


def again(rank: int, size: int, folder: str, solver: str, empty: int) -> dict[str, dict]:
    """The fit again, with other data, and without a checkpoint: in one run, since a start takes seconds."""
    return {
        "again": fitted(rank, size, folder, solver, empty),
        "other data": fitted(rank, size, folder, solver, -1, seed=3),
        "uninterrupted": fitted(rank, size, "none", solver, empty),
    }


if __name__ == "__main__":
    what, folder, solver, *given = sys.argv[1:]
    with group() as rank:
        tell(globals()[what](rank, torch.distributed.get_world_size(), folder, solver, *map(int, given)))
