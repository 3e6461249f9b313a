"""Lanczos vectors on the disk: fits by other sketches, of fewer steps or of another basis take no product again.

The rows of SLU in the paper's table are read from one recurrence: its vectors depend on the network, the points and the
seed alone. For deep networks its products with the curvature take longer than all other fits together.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import slu
from slu.artifacts import locked, read, write
from slu.core import FittedState, SluScore
from slu.curvature import Curvature
from slu.errors import SettingError
from slu.krylov import State, Step, resumed, start_vector
from slu.progress import Bar
from slu.sketches import build
from slu.subspace import SketchedVectors

EVERY, MOST_BYTES = 60.0, 1 << 28
"""Seconds between two writings, and bytes of vectors that wait for one at most."""


def recordable(method: Any) -> bool:
    """Whether it is SLU by the paper's recurrence: low-memory Lanczos on the curvature as it stands."""
    if not isinstance(method, slu.SLU):
        return False
    solver = method.settings.solver
    return isinstance(solver, slu.Lanczos) and not solver.precondition and method.settings.scale is None


def fit_recorded(method: slu.SLU, loader: Any, folder: Path, *, progress: bool | None = None) -> SluScore:
    """The score that `method.fit(loader, calibration=False)` gives, of recorded vectors as far as there are any.

    Args:
        method: One that is `recordable`.
        loader: The same data for all fits of a folder.
        folder: Of the vectors of one network, points and seed; made if it is not there. A fit of more steps adds to it,
            and one that was interrupted goes on.
        progress: As of `fit`.

    Raises:
        SettingError: The rank exceeds what the data allow.
        StorageError: The folder cannot be written or read, or another process is recording.

    Cost: products for the steps that are not there; k p numbers on the disk, of which the vectors of a minute, or of
    256 MB, are in memory.
    """
    settings = method.settings
    rank, selection = settings.rank, settings.network.selection
    curvature = Curvature(settings.network, settings.likelihood, loader, kind=settings.curvature, seed=settings.seed)
    begin, sketch = time.perf_counter(), build(settings.sketch, device=selection.device, dtype=selection.dtype)
    vectors = SketchedVectors(rank, sketch)
    next(iter(settings.network.batches(loader, purpose="fitting")))  # from which it learns their format
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, "a recording of Lanczos vectors"), Bar("fit", rank, progress) as bar:
        recording = _Recording(folder, curvature, settings.seed)
        with closing(recording.steps(rank)) as steps:
            for step in steps:
                vectors.add(step)
                bar.advance()
    if rank > recording.rank_bound:
        raise SettingError(f"rank {rank} is above what the data allow: {recording.rank_bound}. Lower it, or take more")
    solver: Any = settings.solver
    subspace = vectors.subspace(solver.keep)
    products = recording.seconds[len(vectors.tridiagonal) - 1]
    seconds = products + max(0.0, time.perf_counter() - begin - recording.spent)
    return SluScore(settings, sketch, FittedState(subspace, recording.points, len(vectors.tridiagonal), seconds))


class _Recording:
    """Steps that were recorded, and those that are taken now.

    Attributes:
        points, rank_bound: Of the data, known after the first step.
        seconds: Of all products up to each step.
        spent: Of those that were taken now, and of writing them.
    """

    def __init__(self, folder: Path, curvature: Curvature, seed: int) -> None:
        self._folder, self._curvature, self._seed = folder, curvature, seed
        self.points = self.rank_bound = 0
        self.seconds: list[float] = []
        self.spent = 0.0
        self._alphas: list[float] = []
        self._betas: list[float] = []
        self._waiting: list[Tensor] = []

    def steps(self, rank: int) -> Generator[Step, None, None]:
        """Up to so many."""
        state, done = None, 0
        for step in self._recorded(rank):
            yield step
            state, done = step.state, done + 1
        if done >= rank or (done and state is None):  # enough, or the Krylov space is exhausted
            return
        if state is None:
            start = start_vector(self._curvature, self._seed)
            state = State(0, start, None, 0.0, 0.0, start.new_empty(0, len(start)))
        written = begin = time.perf_counter()
        following = None
        try:
            for step in resumed(self._curvature, state, rank):
                following, now = step.following, time.perf_counter()
                self.spent += now - begin
                self._note(step, now - begin)
                if now - written > EVERY or len(self._waiting) * step.vector.nbytes > MOST_BYTES:
                    self._write(following)
                    written = time.perf_counter()
                    self.spent += written - now
                yield step
                begin = time.perf_counter()
        finally:
            self._write(following)

    def _note(self, step: Step, seconds: float) -> None:
        self.points, self.rank_bound = self._curvature.points, max(self.rank_bound, self._curvature.rank_bound)
        self._waiting.append(step.vector.cpu().clone())
        self._alphas.append(step.alpha)
        self._betas.append(step.beta)
        self.seconds.append((self.seconds[-1] if self.seconds else 0.0) + seconds)

    def _write(self, following: Tensor | None) -> None:
        """The steps since the last time, as a file named by the first of them."""
        if not self._waiting:
            return
        first = len(self._alphas) - len(self._waiting)
        tensors = {"vectors": torch.stack(self._waiting)}
        if following is not None:
            tensors["following"] = following
        header = {
            "points": self.points,
            "rank_bound": self.rank_bound,
            "alphas": self._alphas[first:],
            "betas": self._betas[first:],
            "seconds": self.seconds[first:],
        }
        write(self._folder / f"steps-{first + 1:06d}.safetensors", tensors, header)
        self._waiting = []

    def _recorded(self, rank: int) -> Iterator[Step]:
        """What was written before, in order; the recurrence can go on after each step."""
        count, scale, beta = 0, 0.0, 0.0
        while count < rank and (path := self._folder / f"steps-{count + 1:06d}.safetensors").exists():
            header, tensors = read(path, self._curvature.device)
            self.points, self.rank_bound = header["points"], header["rank_bound"]
            self._alphas += header["alphas"]
            self._betas += header["betas"]
            self.seconds += header["seconds"]
            rows = [*tensors["vectors"], *([tensors["following"]] if "following" in tensors else [])]
            for place, alpha in enumerate(header["alphas"][: rank - count]):
                scale, beta = max(scale, abs(alpha) + beta), header["betas"][place]
                vector, following = rows[place], rows[place + 1] if place + 1 < len(rows) else None
                held = vector.new_empty(0, len(vector))
                state = None if following is None else State(count + 1, following, vector, beta, scale, held)
                yield Step(vector, alpha, beta, following, np.zeros(0), state)
                count += 1
