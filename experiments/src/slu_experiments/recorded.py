"""Lanczos vectors on the disk: fits by other sketches, of fewer steps or of another basis take no product again.

The rows of SLU in the paper's table are read from one recurrence, those of LE and LLA from another, in which every
vector is held: their vectors depend on the network, the points and the seed alone. For deep networks the products with
the curvature take longer than all else.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
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
from slu.krylov import State, Step, Tridiagonal, resumed, start_vector
from slu.progress import Bar
from slu.sketches import build
from slu.subspace import SketchedVectors

EVERY, MOST_BYTES = 60.0, 1 << 28
"""Seconds between two writings, and bytes of vectors that wait for one at most."""


def recordable(method: Any) -> bool:
    """Whether it is made of Lanczos vectors of the curvature as it stands: SLU by low-memory ones, LE and LLA."""
    if isinstance(method, slu.LocalEnsemble | slu.LowRankLaplace):
        return True
    if not isinstance(method, slu.SLU):
        return False
    solver = method.settings.solver
    return isinstance(solver, slu.Lanczos) and not solver.precondition and method.settings.scale is None


def fit_recorded(method: Any, loader: Any, folder: Path, *, progress: bool | None = None) -> Any:
    """The score that `method.fit(loader)` gives, for SLU with calibration=False, of recorded vectors as far as there
    are any.

    Args:
        method: One that is `recordable`.
        loader: The same data for all fits of a folder.
        folder: Of the vectors of one network, points and seed; made if it is not there. Those of SLU and of the others,
            and of every curvature, lie apart. A fit of more steps adds to them, and one that was interrupted goes on.
        progress: As of `fit`.

    Raises:
        SettingError: The rank exceeds what the data allow.
        StorageError: The folder cannot be written or read, or another process is recording.

    Cost: products for the steps that are not there; k p numbers on the disk, of which the vectors of a minute, or of
    256 MB, are in memory; for LE and LLA all k.
    """
    sketched = isinstance(method, slu.SLU)
    chosen: Any = method.settings if sketched else method
    curvature = Curvature(chosen.network, chosen.likelihood, loader, kind=chosen.curvature, seed=chosen.seed)
    steps = chosen.rank if sketched else chosen.steps
    next(iter(chosen.network.batches(loader, purpose="fitting")))  # from which it learns their format
    folder = folder / f"{chosen.curvature}-{'low' if sketched else 'high'}-memory"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, "a recording of Lanczos vectors"), Bar("fit", steps, progress) as bar:
        recording = _Recording(folder, curvature, chosen.seed, held=not sketched)
        return (_sketched if sketched else _held)(method, recording, steps, bar)


def _sketched(method: slu.SLU, recording: _Recording, steps: int, bar: Bar) -> SluScore:
    settings, selection = method.settings, method.network.selection
    begun, sketch = time.monotonic(), build(settings.sketch, device=selection.device, dtype=selection.dtype)
    vectors = SketchedVectors(steps, sketch)
    for step in recording.steps(steps):
        vectors.add(step)
        bar.advance()
    if steps > (most := recording.curvature.rank_bound):
        raise SettingError(f"rank {steps} is above what the data allow: {most}. Lower it, or take more")
    solver: Any = settings.solver
    count, points = len(vectors.tridiagonal), recording.curvature.points
    state = FittedState(vectors.subspace(solver.keep), points, count, time.monotonic() - recording.since(begun, count))
    return SluScore(settings, sketch, state)


def _held(method: Any, recording: _Recording, steps: int, bar: Bar) -> Any:
    begun, vectors, tridiagonal = time.monotonic(), [], Tridiagonal()
    for step in recording.steps(steps):
        vectors.append(step.vector)
        tridiagonal.add(step)
        bar.advance()
    recording.told(len(vectors))
    return method.score_of(torch.stack(vectors), tridiagonal, recording.curvature, recording.since(begun, len(vectors)))


class _Recording:
    """Steps that were recorded, and those that are taken now.

    Attributes:
        curvature: Whose products they are.
    """

    def __init__(self, folder: Path, curvature: Curvature, seed: int, *, held: bool) -> None:
        self.curvature = curvature
        self._folder, self._seed, self._held = folder, seed, held
        self._seconds: list[float] = []  # of all products up to each step
        self._spent = 0.0  # on those that were taken now, and on writing them
        self._alphas: list[float] = []
        self._betas: list[float] = []
        self._waiting: list[Tensor] = []

    def since(self, begun: float, count: int) -> float:
        """When a fit of so many steps would have begun that had taken all products itself."""
        return begun + self._spent - self._seconds[count - 1]

    def told(self, count: int) -> None:
        """Let the curvature say what it would after so many products."""
        curvature = self.curvature
        curvature.expect(curvature.seen, curvature.outputs, count, curvature.points)

    def steps(self, rank: int) -> Iterator[Step]:
        """Up to so many; what was taken is written when the last one was asked for, or it is closed."""
        with closing(self._steps(rank)) as steps:
            yield from steps

    def _steps(self, rank: int) -> Generator[Step, None, None]:
        state, before = None, []
        for step in self._recorded(rank):
            yield step
            state = step.state
            before.append(step.vector)
        if len(before) >= rank or (before and state is None):  # enough, or the Krylov space is exhausted
            return
        if state is None:
            start = start_vector(self.curvature, self._seed)
            state = State(0, start, None, 0.0, 0.0, start.new_empty(0, len(start)))
        if self._held:
            held = state.vector.new_empty(rank, len(state.vector))
            for place, vector in enumerate(before):
                held[place] = vector
            state = replace(state, held=held)
        written = begin = time.perf_counter()
        following = None
        try:
            for step in resumed(self.curvature, state, rank):
                following, now = step.following, time.perf_counter()
                self._spent += now - begin
                self._note(step, now - begin)
                if now - written > EVERY or len(self._waiting) * step.vector.nbytes > MOST_BYTES:
                    self._write(following)
                    written = time.perf_counter()
                    self._spent += written - now
                yield step
                begin = time.perf_counter()
        finally:
            self._write(following)

    def _note(self, step: Step, seconds: float) -> None:
        self._waiting.append(step.vector.cpu().clone())
        self._alphas.append(step.alpha)
        self._betas.append(step.beta)
        self._seconds.append((self._seconds[-1] if self._seconds else 0.0) + seconds)

    def _write(self, following: Tensor | None) -> None:
        """The steps since the last time, as a file named by the first of them."""
        if not self._waiting:
            return
        first = len(self._alphas) - len(self._waiting)
        tensors = {"vectors": torch.stack(self._waiting)}
        if following is not None:
            tensors["following"] = following
        header = {
            "points": self.curvature.points,
            "outputs": self.curvature.outputs,
            "alphas": self._alphas[first:],
            "betas": self._betas[first:],
            "seconds": self._seconds[first:],
        }
        write(self._folder / f"steps-{first + 1:06d}.safetensors", tensors, header)
        self._waiting = []

    def _recorded(self, rank: int) -> Iterator[Step]:
        """What was written before, in order; the recurrence can go on after each step."""
        count, scale, beta = 0, 0.0, 0.0
        while count < rank and (path := self._folder / f"steps-{count + 1:06d}.safetensors").exists():
            header, tensors = read(path, self.curvature.device)
            self.curvature.expect(None, header["outputs"], count, header["points"])
            self._alphas += header["alphas"]
            self._betas += header["betas"]
            self._seconds += header["seconds"]
            rows = [*tensors["vectors"], *([tensors["following"]] if "following" in tensors else [])]
            for place, alpha in enumerate(header["alphas"][: rank - count]):
                scale, beta = max(scale, abs(alpha) + beta), header["betas"][place]
                vector, following = rows[place], rows[place + 1] if place + 1 < len(rows) else None
                none = vector.new_empty(0, len(vector))
                state = None if following is None else State(count + 1, following, vector, beta, scale, none)
                yield Step(vector, alpha, beta, following, np.zeros(0), state)
                count += 1
