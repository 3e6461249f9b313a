"""Processes that work on one fit: what they send each other, and how all of them end when one fails.

The engine is torch.distributed as it is. Every exchange begins with a word from each process on whether it is well, so
a process that fails joins the next exchange to say so, and all raise the same error there. The others look for this
between batches, in the store of the group, so that they need not come to the end of their data first.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import torch
from torch import Tensor, distributed

from slu import errors
from slu.errors import MismatchError, ProcessError, SettingError, SluError, out_of_memory

_BUCKET = 1 << 24  # numbers that are summed at a time, so that what is sent needs little memory beside them
_EVERY = 0.5  # seconds between two looks for a process that failed
_PATIENCE = 30.0  # seconds after which those that have not come are named
_ROUNDING = 1e-4  # by which numbers of one score may differ on several machines
_LOOK = 1.0  # seconds after which a process that waits looks who is there

log = logging.getLogger(__name__)


class Processes:
    """The processes of a group; or this one alone, for which nothing is sent.

    Args:
        group: A group of torch.distributed; None for the default one, where it is initialized; False for this process
            alone.

    Attributes:
        rank, size: Which process this is, of how many.
        sent: Bytes that this process has given to collectives, and `seconds` spent in them, waiting included.
    """

    def __init__(self, group: Any = False) -> None:
        there = distributed.is_available() and distributed.is_initialized()
        outside = there and group == distributed.GroupMember.NON_GROUP_MEMBER  # what new_group gives to others
        if isinstance(group, bool | int | str | list | tuple) and group is not False and not outside:
            raise SettingError(f"group takes a group of torch.distributed, None or False, got {group!r}")
        if group is not None and group is not False and not there:
            raise SettingError(f"group={group!r} needs torch.distributed.init_process_group first")
        self._group: Any = None if group is None or group is False else group
        alone = group is False or not there
        self.rank = 0 if alone else distributed.get_rank(self._group)
        self.size = 1 if alone else distributed.get_world_size(self._group)
        if self.rank < 0:
            raise SettingError("this process is not in the group that was given; call it in those that are")
        self.sent, self.seconds = 0, 0.0
        self._ended = self._in_step = False
        self._looked = time.monotonic()

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Around work that all processes do: whatever ends one ends all, with the same error.

        Args:
            what: Is done, in words.

        Raises:
            ProcessError: Another process failed by an error that is not slu's, or did not come.
            MismatchError: It does something else.
        """
        if self.size == 1:
            yield
            return
        self._ended = False
        self._meet()
        try:
            self.check_same({"call": what})
            begun = time.monotonic()
            yield
            with self._stepping():
                self.gathered("the end", None)  # nobody is done before all are
                self._ended = True
            text = "process %d of %d sent %d bytes in sums, and spent %.3f s of %.3f s in collectives, waiting included"
            log.info(text, self.rank, self.size, self.sent, self.seconds, time.monotonic() - begun)
        except BaseException as reason:
            if self._ended:  # all know already
                raise
            try:
                self._exchange(_described(reason), "a failure")
            except SluError as told:
                if isinstance(reason, Exception):
                    raise told from reason
            raise

    def check(self) -> None:
        """Between batches: end here if another process has failed."""
        if self.size == 1 or time.monotonic() - self._looked < _EVERY:
            return
        self._looked = time.monotonic()
        if self._here([self._key("failed")]):
            self.gathered("a failure", None)

    def gathered(self, what: str, value: Any) -> list[Any]:
        """What every process gave, by rank, all under the same name; tensors in it are to be on the CPU."""
        return [value] if self.size == 1 else self._exchange(None, what, value)

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace every tensor by its sum over processes, to the same bits everywhere; each is contiguous."""
        every = [each for each in tensors if each.numel()]
        if self.size == 1:
            return
        # Joined before all say that they are well: memory may run out.
        buckets = [(pieces, pieces[0] if len(pieces) == 1 else torch.cat(pieces)) for pieces in _buckets(every)]
        with self._stepping():
            self.gathered(f"sums of {[(tuple(each.shape), str(each.dtype)) for each in every]}", None)
            for pieces, joined in buckets:
                with self._talking(joined.nbytes):
                    distributed.all_reduce(joined, group=self._group)
                if len(pieces) > 1:
                    for piece, summed in zip(pieces, joined.split([len(each) for each in pieces]), strict=True):
                        piece.copy_(summed)

    def check_same(self, what: Mapping[str, Any]) -> None:
        """Refuse processes of which one has other values than another.

        Raises:
            MismatchError: The message names what differs first, and in which process.
        """
        _check_equal(self.gathered("settings", dict(what)))

    def check_close(
        self,
        numbers: Callable[[], Mapping[str, tuple[float, float]]],
        same: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Refuse processes of which one has other numbers than another, but for rounding; alone nothing is asked for.

        Args:
            numbers: By name, each with the size that rounding is measured by; 0 for none.
            same: What must be the same exactly, as of `check_same`.

        Raises:
            MismatchError: As of `check_same`.
        """
        if self.size > 1:
            told = self.gathered("numbers", (dict(same()), dict(numbers())))
            _check_equal([exact for exact, _ in told])
            _check_equal([{name: _rounded(name, own, told[0][1]) for name in own} for _, own in told])

    def _exchange(self, failure: tuple[str, str] | None, what: str, value: Any = None) -> list[Any]:
        """What every process gave, where all are well."""
        told: list[Any] = [None] * self.size
        with self._stepping():
            with self._talking(0):
                if failure is not None:
                    self._store.set(self._key("failed"), str(self.rank))
                distributed.all_gather_object(told, (failure, what, value), group=self._group)
            failures = {rank: failed for rank, (failed, _, _) in enumerate(told) if failed is not None}
            if failures:
                self._ended = True
                rank, (kind, text) = next(iter(failures.items()))
                shared = len(failures) == self.size and len(set(failures.values())) == 1
                raise _error(kind)(text if shared else f"process {rank} of {self.size}: {text}")
        _check_equal([{"what is exchanged": each} for _, each, _ in told])
        return [given for _, _, given in told]

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """Ctrl-C waits for the end of what all do in step; a second one does not.

        Several collectives are one exchange: between two of them, or before what it told is read, this process could
        not tell the others that it ends.
        """
        before = signal.getsignal(signal.SIGINT)
        if self._in_step or threading.current_thread() is not threading.main_thread() or not callable(before):
            yield  # only the main thread is sent signals, and has handlers of its own
            return
        noted: list[FrameType | None] = []

        def note(number: int, frame: FrameType | None) -> None:
            noted.append(frame)
            if len(noted) > 1:
                before(number, frame)

        signal.signal(signal.SIGINT, note)
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False
            signal.signal(signal.SIGINT, before)
            if len(noted) == 1:
                before(signal.SIGINT, noted[0])

    @contextmanager
    def _talking(self, sent: int) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        except RuntimeError as reason:  # of gloo, nccl or the store
            if out_of_memory(reason) or isinstance(reason, NotImplementedError):
                raise
            self._ended = True
            raise ProcessError(
                f"process {self.rank} of {self.size} lost the others: {reason}. One of them was killed, its machine is "
                "out of reach, or it had so much more data that the timeout= of init_process_group has passed; look at "
                "its output, and start all of them again"
            ) from reason
        self.sent += sent
        self.seconds += time.monotonic() - begun

    def _meet(self) -> None:
        """Wait until all processes are here; name those that do not come."""
        # Counted in the store: a group that has the name of an earlier one may be of other processes.
        self._prefix = f"slu/{self._torch_group.group_name}/{self.size}"
        count, group, meeting = self._key(f"meetings/{self.rank}"), self._prefix, 0
        try:
            with self._stepping(), self._talking(0):
                meeting = self._store.add(count, 1)
                self._prefix = f"{group}/{meeting}"
                self._store.set(self._key(self.rank), "here")
            self._wait_for([self._key(rank) for rank in range(self.size)])
        except BaseException:
            if meeting:
                with suppress(RuntimeError):
                    self._store.add(count, -1)  # those that did not come have not counted it
                with suppress(RuntimeError):  # nor is it here for those that come now
                    self._store.delete_key(self._key(self.rank))
            raise
        with suppress(RuntimeError):  # all are here, so nobody looks there; not every store can delete
            for name in (self.rank, "failed"):
                self._store.delete_key(f"{group}/{meeting - 1}/{name}")

    def _wait_for(self, keys: Sequence[str]) -> None:
        begun, looked, named, away = time.monotonic(), -math.inf, False, list(range(len(keys)))
        while not self._here(keys):
            now = time.monotonic()
            late, long = now - begun > self._timeout, not named and now - begun > _PATIENCE
            if late or long or now - looked > _LOOK:
                # Who was here once has come: others that time out as well take their keys away.
                looked, away = now, [rank for rank in away if not self._here([keys[rank]])]
            if late:
                raise ProcessError(self._missing(keys, away))
            if long:
                named = True
                log.warning("%s", self._missing(keys, away))
            time.sleep(min(0.1, 0.001 + 0.1 * (now - begun)))

    def _here(self, keys: Sequence[str]) -> bool:
        with self._talking(0):
            return self._store.check(list(keys))

    def _missing(self, keys: Sequence[str], away: Sequence[int]) -> str:
        away = away or [rank for rank, key in enumerate(keys) if not self._here([key])]  # some have gone again
        return (
            f"process {self.rank} of {self.size} waits for {away}: all processes of a group must make this call. For a "
            "fit by one process alone, pass group=False"
        )

    def _key(self, name: str | int) -> str:
        return f"{self._prefix}/{name}"

    @property
    def _torch_group(self) -> Any:
        return distributed.group.WORLD if self._group is None else self._group

    @property
    def _timeout(self) -> float:
        """Seconds after which the collectives of the group end; those of its store where that is not known."""
        try:
            backend = self._torch_group._get_backend(self._torch_group._device_types[0])
            return backend.options._timeout.total_seconds()
        except (AttributeError, IndexError, RuntimeError):
            return self._store.timeout.total_seconds()

    @property
    def _store(self) -> Any:
        """Where the processes of the group met first."""
        if hasattr(self._torch_group, "get_group_store"):
            return self._torch_group.get_group_store()
        return distributed.distributed_c10d._get_process_group_store(self._torch_group)  # of earlier versions of torch


ALONE = Processes()
"""This process, where there are no others."""


@contextmanager
def gathering(call: str, gather: bool, group: Any, **settings: Any) -> Iterator[Processes]:
    """Around a call that all processes make: those whose scores it returns, this one alone unless it gathers.

    Args:
        call: What is called, the same everywhere.
        gather: Whether the scores of all are returned.
        group: A group of torch.distributed; None for the default one, where it is initialized; False for this process.
        settings: Of the call, the same everywhere.

    Raises:
        SettingError: A group is given, and nothing to gather.
        MismatchError: Another process makes another call.
        ProcessError: It failed, or did not come.
    """
    if group is not None and group is not False and not gather:
        raise SettingError("group= says whose scores are gathered; pass gather=True as well, or leave group out")
    processes = Processes(group if gather else False)
    given = ", ".join(f"{name}={value!r}" for name, value in settings.items() if value is not None)
    with processes.together(f"{call}({given})"):
        yield processes


def _check_equal(every: Sequence[Mapping[str, Any]]) -> None:
    """Refuse values of processes, by rank, of which one has others than the first."""
    for rank, other in enumerate(every):
        name = next((name for name in {**every[0], **other} if other.get(name) != every[0].get(name)), None)
        if name is not None:
            raise MismatchError(
                f"the processes do not do the same: {name} is {_short(every[0].get(name))} in process 0, in process "
                f"{rank} {_short(other.get(name))}. Give all of them the same model, weights and settings, and the "
                "same calls in the same order"
            )


def _rounded(name: str, own: Mapping[str, tuple[float, float]], first: Mapping[str, tuple[float, float]]) -> str:
    """A number in digits, those of the first process where it differs by rounding."""
    (value, _), (there, size) = own[name], first.get(name, (math.nan, 0.0))
    return f"{there if abs(value - there) <= _ROUNDING * size < math.inf else value:.10g}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}…{text[-19:]}"


def _described(reason: BaseException) -> tuple[str, str]:
    """The class and the words of an exception; those of slu speak for themselves."""
    kind, text = type(reason).__name__, str(reason)
    return kind, text if isinstance(reason, SluError) else f"{kind}: {text}"


def _error(kind: str) -> type[SluError]:
    """The class of slu's errors of that name, that of another process otherwise."""
    known = getattr(errors, kind, None)
    return known if isinstance(known, type) and issubclass(known, SluError) else ProcessError


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Flat views of tensors: large ones in pieces, small ones of one type and device together."""
    waiting: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        flat = tensor.view(-1)
        if len(flat) >= _BUCKET:
            yield from ([piece] for piece in flat.split(_BUCKET))
        else:
            waiting.setdefault((tensor.dtype, tensor.device), []).append(flat)
    yield from waiting.values()
