"""A running fit, written to a file at intervals, so that it can continue after its process was killed.

The file holds everything the rest of the fit depends on: its identity (weights, settings,
likelihood, data) and a snapshot of the solver, or the fitted state when it is done.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from slu.artifacts import stored
from slu.artifacts.files import FORMAT, check_writable, digest, read_newest, write_generation
from slu.data import Fingerprint
from slu.errors import ChangedDataError, DamagedFileError, MismatchError, SettingError, StorageError
from slu.parameters import difference

Snapshot: TypeAlias = tuple[dict[str, torch.Tensor], dict[str, Any]]
"""Tensors and plain data from which a solver can continue."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """Where a fit is saved while it runs, and how often.

    Args:
        path: The file; the one before it is kept as `<path>.previous`.
        every: Seconds between two; 0 for after every step.
    """

    path: str | Path
    every: float = 60.0

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | Path):
            raise SettingError(f"a checkpoint needs a path, got {self.path!r}")
        if not isinstance(self.every, int | float) or not self.every >= 0:
            raise SettingError(f"the seconds between two checkpoints must not be negative, got {self.every!r}")


class CheckpointedRun:
    """Saves one fit while it runs, and restores it; without a checkpoint it does nothing.

    Args:
        checkpoint: A path, a Checkpoint, or None.
        identity: What the fit belongs to, as plain data: a file with another identity is refused.

    Cost: a checkpoint is as large as the solver's snapshot; from a GPU it is copied first. A finished one is
    returned without reading the data, so other data are not noticed then.
    """

    def __init__(self, checkpoint: str | Path | Checkpoint | None, identity: Mapping[str, Any]) -> None:
        self._where = checkpoint if isinstance(checkpoint, Checkpoint | None) else Checkpoint(checkpoint)
        self._identity = dict(identity)
        self._written = time.monotonic()
        self._latest: Callable[[], Snapshot] | None = None
        self._stored: tuple[dict[str, Any], dict[str, torch.Tensor]] | None = None
        self._scale: torch.Tensor | None = None
        self._seconds_before = 0.0
        self._begun = time.monotonic()
        if self._where is not None:
            check_writable(self._where.path)

    def finished(self) -> Snapshot | None:
        """The fitted state, as `finish` was given it, where an earlier run finished the fit."""
        header, tensors = self._read()
        if header.get("stage") != "finished":
            return None
        with self.reading():
            state = stored.table(header, "state")
            points = stored.whole(state, "points", least=1)
        log.info("the checkpoint %s is a finished fit on %d points", self._path, points)
        return tensors, state

    def scale(self) -> torch.Tensor | None:
        """The scale of an earlier run that stopped after it was known; asked before `restore`."""
        return self._read()[1].get("scale")

    def keep_scale(self, scale: torch.Tensor | None) -> None:
        """The scale of this run, which every checkpoint holds from now on: it costs a pass over the data."""
        self._scale = scale

    def restore(self) -> Snapshot | None:
        """Where an earlier run stopped; None where there was none."""
        header, tensors = self._read()
        if not header:
            return None
        with self.reading():
            self._seconds_before = stored.number(header, "seconds", least=0.0)
        self._stored = None  # not needed again
        log.info("continuing from the checkpoint %s", self._path)
        return tensors, header

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around the use of what was read: says of a value that no fit writes which file it is in, and what to do."""
        try:
            yield
        except (DamagedFileError, SettingError) as reason:
            words = str(reason).removesuffix(". Fit and save anew")
            raise DamagedFileError(
                f"the checkpoint {self._path} was edited: {words}. Name another file, or delete it to begin anew"
            ) from reason

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Whatever ends the fit early, Ctrl-C included, leaves the last whole step on disk."""
        try:
            yield
        except BaseException as reason:
            self._try_to_write()
            if self._seconds_before and isinstance(reason, ChangedDataError):
                raise MismatchError(
                    f"the checkpoint {self._path} was begun on other data, or the data change: {reason}. "
                    "Name another file, or delete it to begin anew"
                ) from reason
            raise

    def note(self, snapshot: Callable[[], Snapshot]) -> None:
        """A step is done: save it if the last save is long enough ago, or when the fit is interrupted."""
        if self._where is None:
            return
        self._latest = snapshot
        if time.monotonic() - self._written >= self._where.every:
            self._try_to_write()

    def forget(self) -> None:
        """The last step is being changed: until the next is noted, there is nothing to save."""
        self._latest = None

    def finish(self, state: Callable[[], Snapshot]) -> None:
        """The fit is done: the next call with this checkpoint returns at once, or has its calibration left to do."""
        self._latest = None
        if self._where is None:
            return
        tensors, plain = state()
        header = {"identity": self._identity, "stage": "finished", "state": plain}
        try:
            write_generation(self._where.path, tensors, header | {"tensors": stored.inventory(tensors)})
        except StorageError as reason:
            warnings.warn(f"the fit is done, but its checkpoint could not be written: {reason}", stacklevel=3)

    @property
    def seconds(self) -> float:
        """Spent on this fit, earlier runs included."""
        return self._seconds_before + time.monotonic() - self._begun

    @property
    def _path(self) -> str | Path | None:
        return self._where.path if self._where else None

    def _try_to_write(self) -> None:
        """Save the last step, where there is one; a full disk must neither end the fit nor hide what ended it."""
        if self._where is None or self._latest is None:
            return
        tensors, header = self._latest()
        tensors = tensors if self._scale is None else {**tensors, "scale": self._scale}
        header = {"identity": self._identity, "stage": "running", **header, "seconds": self.seconds}
        header |= {"tensors": stored.inventory(tensors), "step": _digest(header)}
        try:
            write_generation(self._where.path, tensors, header)
            self._latest = None
        except StorageError as reason:
            warnings.warn(f"the fit goes on without a newer checkpoint: {reason}", stacklevel=4)
        self._written = time.monotonic()

    def _read(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        if self._stored is not None:
            return self._stored
        newest = None if self._where is None else read_newest(self._where.path)
        if newest is None:
            return {}, {}
        header, tensors = newest
        if header["format"] < FORMAT:
            raise StorageError(
                f"the checkpoint {self._path} was begun by an earlier version of slu (format {header['format']}, "
                f"this one goes on from format {FORMAT}); name another file, or delete it to begin anew"
            )
        with self.reading():
            stored.check_inventory(header, tensors)
            stored.text(header, "stage", ("running", "finished"))
            identity = stored.table(header, "identity")
            # No number computed again could tell another sum of gradients from the one that was written.
            if "step" in header and header["step"] != _digest(header):
                raise stored.wrong("step", header["step"], "the digest of the fields beside it")
        differs = _difference(identity, self._identity)
        if differs:
            raise MismatchError(
                f"the checkpoint {self._path} belongs to another fit: {differs}. "
                "Name another file, or delete it to begin anew"
            )
        self._stored = newest
        return newest


def stored_fingerprint(header: Mapping[str, Any]) -> Fingerprint:
    """What a running fit has seen of the data."""
    seen = stored.table(header, "data")
    return Fingerprint(
        points=stored.whole(seen, "points", least=1),
        content=stored.whole(seen, "content"),
        outputs=stored.number(seen, "outputs"),
        magnitude=stored.number(seen, "magnitude", least=0.0),
    )


def _digest(header: Mapping[str, Any]) -> str:
    """Of the fields of a running fit that its solver wrote."""
    fields = {key: header[key] for key in header if key not in ("format", "tensors", "step", "identity")}
    return digest({}, json.dumps(fields, sort_keys=True))


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str | None:
    for key, here in ours.items():
        there = theirs.get(key)
        if key == "weights" and isinstance(there, dict) and all(isinstance(each, str) for each in there.values()):
            differs = difference(there, here)
            if differs:
                return differs
        elif there != here:
            return f"its {key} is {stored.short(there)}, here it is {stored.short(here)}"
    return None
