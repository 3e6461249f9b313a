"""A running fit, written to a file at intervals, so that it can continue after its process was killed.

The file holds everything the rest of the fit depends on: its identity (weights, settings, likelihood), the content of
the data that were read, and a snapshot of the solver, or the fitted state when it is done.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from slu.artifacts import stored
from slu.artifacts.files import check_writable, put_back, read_newest, remove_parts, write_generation
from slu.artifacts.locking import locked
from slu.artifacts.records import check_unedited, step_digest, stored_content
from slu.artifacts.replacing import target
from slu.data import ComparedData
from slu.errors import ChangedDataError, DamagedFileError, MismatchError, SettingError, StorageError
from slu.parameters import difference

Snapshot: TypeAlias = tuple[dict[str, torch.Tensor], dict[str, Any]]
"""Tensors and plain data from which a solver can continue."""

VERSION = 5
"""Of what a checkpoint holds: since 5 numbers of held-out points and the side of padding; 3 and 4 had other keys."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """Where a fit is saved while it runs, and how often.

    Args:
        path: The file; the one before it is kept as `<path>.previous`.
        every: Seconds between two; 0 for after every step.
        check_data: Whether the data must be those of the run that began it. If False, what is resumed skips as many
            points, a finished fit is returned without reading the data, and the file is from then on refused where
            they are to be compared. For a loader that changes every point in its place, by augmentation; not for
            shuffled data, of which some points would count twice and others never: give shuffle=False, or a generator
            that is seeded the same. The passes of one fit are compared all the same. SLU takes it only with
            `calibration=False` or a loader of calibration points: of data that change, a resumed fit would hold out
            other points than it began with.
    """

    path: str | Path
    every: float = 60.0
    check_data: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | Path):
            raise SettingError(f"a checkpoint needs a path, got {self.path!r}")
        if not isinstance(self.every, int | float) or isinstance(self.every, bool) or not self.every >= 0:
            raise SettingError(
                f"the seconds between two checkpoints must be a number of at least 0, got {self.every!r}"
            )
        if not isinstance(self.check_data, bool):
            raise SettingError(f"check_data must be True or False, got {self.check_data!r}")


class CheckpointedRun:
    """Saves one fit while it runs, and restores it; without a checkpoint it does nothing.

    Args:
        checkpoint: A path, a Checkpoint, or None.
        identity: What the fit belongs to, as plain data: a file with another identity is refused.
        data: What is fitted; needed with a checkpoint.
        given: Calibration points that the user gave.
        processes: How many fit together; a fit of another number that is not finished is refused.

    Cost: a checkpoint is as large as the solver's snapshot and 24 bytes per batch; from a GPU it is copied first.
    """

    def __init__(
        self,
        checkpoint: str | Path | Checkpoint | None,
        identity: Mapping[str, Any],
        data: ComparedData | None = None,
        given: ComparedData | None = None,
        *,
        processes: int = 1,
    ) -> None:
        self._where = checkpoint if isinstance(checkpoint, Checkpoint | None) else Checkpoint(checkpoint)
        self._identity = dict(identity)
        self._written = time.monotonic()
        self._data, self._given, self._size = data, given, processes
        self._latest: Callable[[], Snapshot] | None = None
        self._batches = 0  # that were read when the latest was noted
        self._resumed = False
        self._confirmed = True  # or the pass that goes on is compared as a whole when it ends
        self._kept = False  # the generation that was resumed, meanwhile
        self._process = os.getpid()
        self._was_compared = True  # with what earlier runs had read
        self._earlier: dict[str, Any] = {}  # what an earlier run had read
        self._stored: tuple[dict[str, Any], dict[str, torch.Tensor]] | None = None
        self._scale: torch.Tensor | None = None
        self._seconds_before = 0.0
        self._begun = time.monotonic()
        if self._where is not None:
            check_writable(self._where.path)

    @property
    def compares(self) -> bool:
        """Whether the data must be those of the run that began it."""
        return self._where is None or self._where.check_data

    @property
    def unread(self) -> bool:
        """Whether the data are to be compared, and none were read by this process."""
        return self.compares and self._data is not None and not self._data.batches_read

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Inside of the block nobody else writes this checkpoint; one that is finished may be read by several.

        Raises:
            StorageError: Another fit writes it; the message names its process.
        """
        with ExitStack() as stack:
            if self._where is not None:
                try:
                    stack.enter_context(locked(self._where.path, f"a fit of {self._identity['method']}"))
                except StorageError:
                    if not self._is_finished():
                        raise
            yield

    def _is_finished(self) -> bool:
        try:
            return self.read()[0].get("stage") == "finished"
        except StorageError:
            return False

    def finished(self) -> Snapshot | None:
        """The fitted state, as `finish` was given it, where an earlier run finished the fit or was calibrating it.

        From here on the data and the given points are compared with those of that run.
        """
        header, tensors = self.read()
        if not header:
            return None
        if header["stage"] == "running":
            self._expect(header)  # given points are read before the solver restores the rest
            return None
        with self.reading():
            state = stored.table(header, "state")
        log.info("the checkpoint %s is a finished fit", self._path)
        self._expect(header)
        return tensors, state

    def check_read(self) -> None:
        """After data were read to be compared with those of a finished fit: they were, as they were read."""

    def scale(self) -> torch.Tensor | None:
        """The scale of an earlier run that stopped after it was known; asked before `restore`."""
        return self.read()[1].get("scale")

    def keep_scale(self, scale: torch.Tensor | None) -> None:
        """The scale of this run, which every checkpoint holds from now on: it costs a pass over the data."""
        self._scale = scale

    def record(self, read: Mapping[str, Any], *, compared: bool) -> None:
        """What was read elsewhere for the fit, as plain data, and whether it was compared: the file is to say so."""
        self._earlier, self._was_compared = dict(read), compared

    def restore(self, *, in_order: bool) -> Snapshot | None:
        """Where an earlier run stopped; None where there was none.

        Args:
            in_order: Whether the next pass must begin with the batches of the one that was stopped.
        """
        header, tensors = self.read()
        if not header:
            return None
        with self.reading():
            self._seconds_before = stored.number(header, "seconds", least=0.0)
            batches = stored.tensor(tensors, "batches", (None, 3), torch.int64) if in_order else None
        tensors.pop("batches", None)
        self._expect(header, batches)
        self._confirmed = not (in_order and self.compares and "data" in self._earlier)
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
            raise DamagedFileError(f"the checkpoint {self._path} was edited: {words}; {self._begin_anew()}") from reason

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Whatever ends the fit early, Ctrl-C included, leaves the last whole step on disk.

        Data that are refused leave the step that was resumed.
        """
        with self.comparing():
            try:
                yield
            except ChangedDataError:
                # What was written since may be of the data that are refused.
                if self._where is not None and self._kept and not self._is_fork:
                    put_back(self._where.path)
                raise
            except BaseException:
                self._try_to_write()
                raise

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """Data that differ from those of an earlier run are refused with the remedy."""
        try:
            yield
        except ChangedDataError as reason:
            if not self._resumed:
                raise
            raise MismatchError(
                f"the checkpoint {self._path} was begun on other data, or in other batches: {reason}. Or "
                f"{self._begin_anew()}"
            ) from reason

    def _expect(self, header: Mapping[str, Any], batches: torch.Tensor | None = None) -> None:
        """Compare the data with those of an earlier run as they are read."""
        first, self._resumed = not self._resumed, True
        with self.reading():
            self._earlier = dict(stored.table(header, "read"))
            # Of a fit that runs, the data may not have been read whole yet; given points were, before it.
            read = {name: name in self._earlier or header["stage"] != "running" for name, _ in self._compared()}
            wholes = {name: stored_content(self._earlier, name) for name in read if read[name] or name == "given"}
        self._check_compared(header)
        if not self.compares:
            if self._data is not None:
                self._data.expect_at_least(wholes.get("data"), batches)
            if first:
                log.warning("the data are not compared with those of the checkpoint %s: check_data=False", self._path)
            return
        for name, data in self._compared():
            data.expect(wholes.get(name), batches if data is self._data else None)

    def _check_compared(self, header: Mapping[str, Any]) -> None:
        with self.reading():
            self._was_compared = self.compares and ("compared" not in header or stored.truth(header, "compared"))
        if self.compares and not self._was_compared:
            raise MismatchError(
                f"the checkpoint {self._path} went on with check_data=False, so which data are in it is not known. Use "
                f"it with Checkpoint(path, check_data=False) again, {self._begin_anew()}"
            )

    def _compared(self) -> list[tuple[str, ComparedData]]:
        both = (("data", self._data), ("given", self._given))
        return [(name, data) for name, data in both if data is not None]

    def _content(self) -> dict[str, Any]:
        """What was read, here or by an earlier run, as plain data."""
        here = {name: data.whole for name, data in self._compared()}
        return self._earlier | {name: whole._asdict() for name, whole in here.items() if whole is not None}

    def _known(self) -> dict[str, Any]:
        """What a file says in every stage."""
        read = {"read": self._content(), "compared": self._was_compared}
        return {"identity": self._identity, "version": VERSION, "processes": self._size, **read}

    def note(self, snapshot: Callable[[], Snapshot]) -> None:
        """A step is done: save it if the last save is long enough ago, or when the fit is interrupted."""
        if self._where is None:
            return
        self._latest, self._batches = snapshot, 0 if self._data is None else self._data.batches_read
        if time.monotonic() - self._written >= self._where.every:
            self._try_to_write()

    def forget(self) -> None:
        """The last step is being changed: until the next is noted, there is nothing to save."""
        self._latest = None

    def finish(self, state: Callable[[], Snapshot], *, calibrated: bool) -> bool:
        """The fit is done: the next call returns it, or has its calibration left to do; whether it was written."""
        self._latest = None
        if self._where is None or self._is_fork:
            return False
        tensors, plain = state()
        stage = "finished" if calibrated else "calibrating"
        header = {**self._known(), "stage": stage}
        try:
            write_generation(self._where.path, tensors, header | {"state": plain, "tensors": stored.inventory(tensors)})
            remove_parts(self._where.path)
            return True
        except StorageError as reason:
            warnings.warn(f"the fit is done, but its checkpoint could not be written: {reason}", stacklevel=3)
        return False

    @property
    def seconds(self) -> float:
        """Spent on this fit, earlier runs included."""
        return self._seconds_before + time.monotonic() - self._begun

    @property
    def _is_fork(self) -> bool:
        """Whether this process is a fork of the one that holds the lock, such as a worker of a loader."""
        return os.getpid() != self._process

    @property
    def _path(self) -> str | Path | None:
        """As messages name it: what the user gave."""
        return self._where.path if self._where else None

    def _begin_anew(self, processes: int | None = None) -> str:
        """What else to do about a file that is not taken; those of several processes are beside it."""
        count = processes or self._size
        parts = f" and {target(self._path)}.*-of-{count}*" if self._path is not None and count > 1 else ""
        return f"name another file, or delete it{parts} to begin anew"

    def _try_to_write(self) -> None:
        """Save the last step, where there is one; a full disk must neither end the fit nor hide what ended it."""
        if self._where is None or self._latest is None or self._is_fork:
            return
        tensors, header = self._latest()
        tensors = tensors if self._scale is None else {**tensors, "scale": self._scale}
        tensors = tensors if self._data is None else {**tensors, "batches": self._data.first_batches(self._batches)}
        header = {**self._known(), "stage": "running", **header, "seconds": self.seconds}
        header |= {"tensors": stored.inventory(tensors), "step": step_digest(header)}
        try:
            write_generation(self._where.path, tensors, header, rotate=not self._kept)
            self._latest, self._kept = None, not self._confirmed
        except StorageError as reason:
            warnings.warn(f"the fit goes on without a newer checkpoint: {reason}", stacklevel=4)
        self._written = time.monotonic()

    def read(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Header and tensors of the newest whole file of this fit; empty where there is none."""
        if self._stored is not None:
            return self._stored
        newest = None if self._where is None else read_newest(self._where.path)
        if newest is None:
            return {}, {}
        header, tensors = newest
        version = header.get("version")
        if version != VERSION:
            by = "a newer" if isinstance(version, int) and version > VERSION else "an earlier"
            raise StorageError(
                f"the checkpoint {self._path} was begun by {by} version of slu, and this one cannot compare its data; "
                f"{self._begin_anew()}"
            )
        with self.reading():
            check_unedited(header, tensors)
            identity, begun = stored.table(header, "identity"), stored.whole(header, "processes", least=1)
        differs = _difference(identity, self._identity)
        if differs:
            raise MismatchError(f"the checkpoint {self._path} belongs to another fit: {differs}; {self._begin_anew()}")
        if header["stage"] != "finished" and begun != self._size:
            raise MismatchError(
                f"the checkpoint {self._path} was begun by {begun} processes, and here are {self._size}; start as "
                f"many, {self._begin_anew(begun)}"
            )
        self._stored = newest
        return newest


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
