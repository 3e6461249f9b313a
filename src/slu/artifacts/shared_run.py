"""A running fit of several processes, written to files of their own, and to one when it is done.

Every process writes what it has added up to `<path>.<rank>-of-<size>`, at its own pace: what it sums belongs to its
part of the data alone, so that files of different batches go together. If the path is a link, all are beside what it
points to; messages name the path alone. `<path>` says that there are such files, and by
how many processes; it is written after the first of them, and replaced by the finished fit, as of one process.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from slu.artifacts import stored
from slu.artifacts.checkpoint import Checkpoint, CheckpointedRun, Snapshot
from slu.artifacts.files import check_writable, remove_parts, write_generation
from slu.artifacts.records import stored_content
from slu.artifacts.replacing import target
from slu.data import ComparedData, Content
from slu.errors import MismatchError, StorageError
from slu.processes import Processes


class SharedRun(CheckpointedRun):
    """Saves this process' part of a fit, and restores it; the first process also saves the whole.

    Args:
        checkpoint: A path or a Checkpoint, the same for all processes.
        identity, data, given: As of `CheckpointedRun`; the data are the part of this process.
        processes: Those that fit together.

    Cost: of the stream the sums of every process, s (k + oversampling) numbers each; of Lanczos its vectors, p numbers.
    """

    def __init__(
        self, checkpoint: str | Path | Checkpoint, identity: Mapping[str, Any], data: ComparedData,
        given: ComparedData | None, processes: Processes,
    ) -> None:  # fmt: skip
        where = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        check_writable(where.path)  # before the part, which messages would name
        own = dataclasses.replace(where, path=f"{target(where.path)}.{processes.rank}-of-{processes.size}")
        super().__init__(own, identity, data, given, processes=processes.size)
        self._processes, self._whole_path, self._own_path = processes, where.path, own.path
        self._whole = CheckpointedRun(where, identity, processes=processes.size) if processes.rank == 0 else None
        self._expected: dict[str, Content] = {}

    @contextmanager
    def holding(self) -> Iterator[None]:
        """As of one process; the first holds the file of the whole before, which messages are to name."""
        with ExitStack() as stack:
            if self._whole is not None:
                stack.enter_context(self._whole.holding())
            stack.enter_context(super().holding())
            yield

    def finished(self) -> Snapshot | None:
        """The fitted state that the first process has, for all."""
        whole = ({}, {}) if self._whole is None else self._whole.read()
        done = whole[0].get("stage", "running") != "running"
        header, tensors = self._processes.gathered("the finished fit", whole if done else ({}, {}))[0]
        if not header:
            return super().finished()
        remove_parts(self._whole_path)  # left by a process that was killed in the end
        self._check_compared(header)
        with self.reading():
            state = stored.table(header, "state")
            if self.compares:
                read = stored.table(header, "read")
                self._expected = {name: stored_content(read, name) for name, _ in self._compared()}
        return tensors, state

    def check_read(self) -> None:
        """What all processes have read must be what the run had read that finished the fit."""
        here = self._pooled()
        for name, data in self._compared():
            expected, came = self._expected.get(name), here.get(name)
            if expected is None or came is None or not came.differs(expected):
                continue
            padding = came.other_padding(expected, data.what, "the run that began it")
            others = f"{expected.points} points, and here are {came.points}, or others, in all processes"
            raise MismatchError(
                f"the finished fit {self._whole_path} was of other data: {padding or others}. "
                f"{'Or name' if padding else 'Name'} another file, or delete it to begin anew"
            )

    def scale(self) -> torch.Tensor | None:
        """That of any process: it is the same for all."""
        own = super().scale()
        told = self._processes.gathered("whose scale", own is not None)
        owner = next((rank for rank, known in enumerate(told) if known), None)
        if owner is None:
            return None
        return self._processes.gathered("the scale", own if self._processes.rank == owner else None)[owner]

    def restore(self, *, in_order: bool) -> Snapshot | None:
        """Where this process stopped; of a recurrence that all follow, where the process stopped that came farthest."""
        own = super().restore(in_order=in_order)
        if in_order:
            return own
        steps = self._processes.gathered("steps", 0 if own is None else own[1]["passes"])
        farthest = steps.index(max(steps))
        if not steps[farthest]:
            return None
        ahead = self._processes.gathered("a step", own if self._processes.rank == farthest else None)[farthest]
        return ahead[0], ahead[1] | {"data": None if own is None else own[1]["data"]}

    def finish(self, state: Callable[[], Snapshot], *, calibrated: bool) -> bool:
        """The first process writes the fit; what it was made from is removed then."""
        read = {name: each._asdict() for name, each in self._pooled().items()}
        compared = all(self._processes.gathered("whether data were compared", self._was_compared))
        if self._whole is not None:
            self._whole.record(read, compared=compared)
        written = self._whole is not None and self._whole.finish(state, calibrated=calibrated)
        written = self._processes.gathered("whether it is written", written)[0]
        self.forget()
        if written:
            remove_parts(self._whole_path)
        return written

    @property
    def _path(self) -> str | Path | None:
        return self._whole_path

    def _try_to_write(self) -> None:
        super()._try_to_write()
        # By whichever process is the first to have a file: another may have no data, or wait for this one.
        if self._is_fork or Path(self._whole_path).exists() or not Path(self._own_path).exists():
            return
        try:
            write_generation(self._whole_path, {}, self._known() | {"stage": "running", "tensors": {}}, rotate=False)
        except StorageError as reason:
            warnings.warn(f"the fit goes on without a newer checkpoint: {reason}", stacklevel=5)

    def _pooled(self) -> dict[str, Content]:
        """What all processes have read; calibration points that all were given count once."""
        told = self._processes.gathered("data read", {name: data.whole for name, data in self._compared()})
        pooled = {}
        for name in told[0]:
            parts = [each[name] for each in told if each[name] is not None]
            same = name == "given" and not any(each.differs(parts[0]) for each in parts)
            if parts:
                pooled[name] = parts[0] if same else reduce(Content.plus, parts)
        return pooled
