"""Lanczos vectors on the disk: fits by other sketches, of fewer steps or of another basis take no product again.

The rows of SLU in the paper's table are read from one recurrence, those of LE and LLA from another, in which every
vector is held: their vectors depend on the network, the points and the seed alone. For deep networks the products with
the curvature take longer than all else.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import slu
from slu.artifacts import locked, read, write
from slu.core import FittedState, SluScore
from slu.curvature import Curvature
from slu.data import Fingerprint
from slu.errors import MismatchError, SettingError
from slu.krylov import State, Step, Tridiagonal, resumed, start_vector
from slu.progress import Bar
from slu.sketches import build
from slu.subspace import SketchedVectors

EVERY, MOST_BYTES = 60.0, 1 << 28
"""Seconds between two writings, and bytes of vectors that wait for one at most."""


def recordable(method: Any) -> bool:
    """Whether it is made of Lanczos vectors of the curvature as it stands, of a given rank: SLU's, LE's or LLA's."""
    if isinstance(method, slu.LocalEnsemble | slu.LowRankLaplace):
        return not method.rank_from_budget
    if not isinstance(method, slu.SLU):
        return False
    settings, solver = method.settings, method.settings.solver
    plain = isinstance(solver, slu.Lanczos) and not solver.precondition and settings.scale is None
    return plain and settings.rank_given


def fit_recorded(method: Any, loader: Any, folder: Path, *, progress: bool | None = None) -> Any:
    """The score that `method.fit(loader)` gives, for SLU with calibration=False, from vectors that were recorded.

    Args:
        method: One that is `recordable`.
        loader: The same data for all fits of a folder; they are compared where a product is taken.
        folder: Of one network, its selected parameters, points and seed; made if it is not there. The vectors of SLU,
            of the other methods and of every curvature have folders of their own in it. A fit of more steps adds to
            them, and one that was interrupted goes on.
        progress: As of `fit`.

    Raises:
        SettingError: The rank exceeds what the data allow.
        MismatchError: Vectors of other parameters are in the folder.
        DataError: Or of other points.
        StorageError: The folder cannot be written or read, or another process is recording.

    Cost: products for the steps that are not there; k p numbers on the disk, of which the vectors of a minute, or of
    256 MB, are in memory; of LE and LLA all k.
    """
    sketched = isinstance(method, slu.SLU)
    settings: Any = method.settings if sketched else method
    network = settings.network
    steps = settings.rank if sketched else settings.steps
    curvature = Curvature(network, settings.likelihood, loader, kind=settings.curvature, seed=settings.seed)
    next(iter(network.batches(loader, purpose="fitting")))  # from which it learns their format
    folder = folder / f"{settings.curvature}-{'low' if sketched else 'high'}-memory"
    folder.mkdir(parents=True, exist_ok=True)
    sketch = build(settings.sketch, device=curvature.device, dtype=curvature.dtype) if sketched else None
    vectors, tridiagonal = None if sketch is None else SketchedVectors(steps, sketch), Tridiagonal()
    begun = time.monotonic()
    with locked(folder, "a recording of Lanczos vectors"), Bar("fit", steps, progress) as bar:
        recording = _Recording(folder, curvature, settings.seed, network.selection.names, hold=0 if sketched else steps)
        with closing(recording.steps(steps)) as taken:
            for step in taken:
                if settings.rank > curvature.rank_bound:
                    raise SettingError(
                        f"rank {settings.rank} is above what the data allow: {curvature.rank_bound}. Lower it, or take "
                        "more points"
                    )
                tridiagonal.add(step)
                if vectors is not None:
                    vectors.add(step)
                bar.advance()
    count = len(tridiagonal)
    # As if this fit had taken all of the products.
    begun -= recording.seconds[count - 1] - recording.spent
    curvature.expect(curvature.seen, curvature.outputs, count, curvature.points)
    if vectors is None or sketch is None:
        return method.score_of(recording.held[:count], tridiagonal, curvature, begun)
    subspace = vectors.subspace(settings.solver.keep)
    return SluScore(settings, sketch, FittedState(subspace, curvature.points, count, time.monotonic() - begun))


class _Recording:
    """Steps that were recorded, and those that are taken now.

    Args:
        folder: Of one recurrence.
        curvature: Whose products they are.
        seed: Of the start vector.
        names: Of the selected parameters.
        hold: How many vectors are held, to which later ones are kept orthogonal.

    Attributes:
        held: (hold, p); rows of steps that were taken or read are filled.
        seconds: Of all products up to each step.
        spent: On those that were taken now, and on writing them.
    """

    def __init__(self, folder: Path, curvature: Curvature, seed: int, names: Sequence[str], *, hold: int) -> None:
        self._folder, self._curvature, self._seed, self._names = folder, curvature, seed, list(names)
        self.held = torch.empty(hold, curvature.shape[0], dtype=curvature.dtype, device=curvature.device)
        self.seconds: list[float] = []
        self.spent = 0.0
        self._waiting: list[tuple[int, Step, float]] = []  # its number, it, and the seconds of all products up to it

    def steps(self, count: int) -> Generator[Step, None, None]:
        """Up to so many; what was taken is written at the end, or when this is closed."""
        state, done = None, 0
        for step in self._recorded(count):
            yield step
            state, done = step.state, done + 1
        if done >= count or (done and state is None):  # enough, or the Krylov space is exhausted
            return
        if state is None:
            state = State(0, start_vector(self._curvature, self._seed), None, 0.0, 0.0, self.held)
        taken, step = resumed(self._curvature, state, count), None
        del state  # it would keep its vectors, and those of the file that they are from
        written = begin = time.monotonic()
        try:
            for number, step in enumerate(taken, done + 1):
                now = time.monotonic()
                self.spent += now - begin
                seconds = (self.seconds[-1] if self.seconds else 0.0) + now - begin
                self._waiting.append((number, step, seconds))  # at once: an interrupt finds it whole, or not at all
                self.seconds.append(seconds)
                if now - written > EVERY or len(self._waiting) * step.vector.nbytes > MOST_BYTES:
                    self._write()
                    written = time.monotonic()
                yield step
                begin = time.monotonic()
        finally:
            self._write()

    def _write(self) -> None:
        """The steps since the last time, as a file named by the first of them."""
        if not self._waiting:
            return
        begin, seen = time.monotonic(), self._curvature.seen
        assert seen is not None
        steps, first = [step for _, step, _ in self._waiting], self._waiting[0][0]
        tensors = {f"{place}": step.vector.cpu() for place, step in enumerate(steps)}
        if steps[-1].following is not None:
            tensors[f"{len(steps)}"] = steps[-1].following.cpu()
        header = {
            "parameters": self._names,
            "data": asdict(seen),
            "outputs": self._curvature.outputs,
            "alphas": [step.alpha for step in steps],
            "betas": [step.beta for step in steps],
            "seconds": [seconds for *_, seconds in self._waiting],
        }
        write(self._folder / f"steps-{first:06d}.safetensors", tensors, header)
        self._waiting = []
        self.spent += time.monotonic() - begin

    def _recorded(self, most: int) -> Iterator[Step]:
        """What was written before, in order; the recurrence can go on after each step."""
        count, scale, beta = 0, 0.0, 0.0
        while count < most and (path := self._folder / f"steps-{count + 1:06d}.safetensors").exists():
            header, rows = read(path, self._curvature.device)
            if header["parameters"] != self._names:
                raise MismatchError(f"{path} has Lanczos vectors of other parameters; give another folder")
            seen = Fingerprint(**header["data"])
            self._curvature.expect(seen, header["outputs"], count, seen.points)
            self.seconds += header["seconds"]
            for place, alpha in enumerate(header["alphas"][: most - count]):
                scale, beta = max(scale, abs(alpha) + beta), header["betas"][place]
                vector, following = rows[f"{place}"], rows.get(f"{place + 1}")
                if count < len(self.held):
                    self.held[count] = vector
                state = None if following is None else State(count + 1, following, vector, beta, scale, self.held)
                yield Step(vector, alpha, beta, following, np.zeros(0), state)
                count += 1
