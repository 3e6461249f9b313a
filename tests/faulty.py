"""A small score, a fit with checkpoints and what they must say, for the tests of faults."""

from __future__ import annotations

import shutil
import warnings
from contextlib import suppress
from pathlib import Path

import torch

from formulaic import inputs, network, queries
from slu import SLU, Checkpoint, FactoredScale, Lanczos, SluScore
from slu.artifacts import read

BATCH, POINTS = 12, 48
SOLVERS = {
    "stream": {"solver": "stream", "scale": FactoredScale(points=BATCH)},
    "lanczos": {"solver": Lanczos(precondition=2), "scale": None},
}


def data(stop: int | None = None):
    """A list of batches, or a loader that is interrupted after so many."""
    batches = list(inputs("mlp", POINTS).split(BATCH))
    return batches if stop is None else Stopped(batches, stop)


class Stopped:
    def __init__(self, batches: list[torch.Tensor], stop: int) -> None:
        self._batches, self._left = batches, stop

    def __iter__(self):
        for batch in self._batches:
            if not self._left:
                raise KeyboardInterrupt
            self._left -= 1
            yield batch


def fit(solver: str, checkpoint: Path | None = None, stop: int | None = None) -> SluScore:
    """A fit as users have it, calibrated on points of their own, with a checkpoint after every step."""
    kept = None if checkpoint is None else Checkpoint(checkpoint, every=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few points; and a checkpoint that could not be written
        method = SLU(network("mlp"), "classification", rank=3, sketch_size=20, **SOLVERS[solver])
        return method.fit(data(stop), calibration=inputs("mlp", 30, 9), checkpoint=kept)


def interrupted(solver: str, folder: Path) -> Path:
    """The checkpoint of a fit that was stopped midway, and the one before it."""
    path = folder / "run.ckpt"
    with suppress(KeyboardInterrupt):
        fit(solver, path, stop={"stream": 3, "lanczos": 10}[solver])
    assert read(path)[0]["stage"] == "running" and path.with_name("run.ckpt.previous").exists()
    return path


def scores(score: SluScore) -> torch.Tensor:
    """What a score says of eight points, by every reading, and its p-values."""
    points = queries("mlp")
    return torch.stack([*(score(points, reading=name).double() for name in score.readings), score.pvalue(points)])


def loaded(path: Path) -> SluScore:
    return SLU.load(path, network("mlp"))


def fresh(folder: Path, files: Path | None = None) -> Path:
    """The folder, empty but for copies of these files."""
    shutil.rmtree(folder, ignore_errors=True)
    if files is None:
        folder.mkdir()
    else:
        shutil.copytree(files, folder)
    return folder
