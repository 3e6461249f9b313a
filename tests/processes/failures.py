"""Run by several processes: fits that one of them cannot do, one after the other in the same group."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader, DistributedSampler

from running import group, tell
from slu import SLU, SluScore
from slu.errors import CalibrationWarning, SluError
from slu.processes import Processes
from together import network, parts, points

ENDLESS = 400
"""Batches of 0.1 s, which nobody waits for."""
QUERIES = points(5, "classification").tensors[0]


def failing(loader, after: int):
    """A loader that fails."""
    for place, batch in enumerate(loader):
        if place == after:
            raise OSError("the disk is gone")
        yield batch


def slow(loader):
    """A loader of a long pass."""
    for _ in range(ENDLESS):
        for batch in loader:
            time.sleep(0.1)
            yield [each + torch.randn(1).item() if each.is_floating_point() else each for each in batch]


class Interrupted:
    def __init__(self, loader) -> None:
        self.loader = loader

    def __iter__(self):
        yield next(iter(self.loader))
        raise KeyboardInterrupt


def fitted(model, loader, *, calibration=None, **settings) -> SluScore:
    return SLU(model, "classification", **({"rank": 4} | settings)).fit(loader, calibration=calibration)


def calibrated_on_few(rank: int, size: int) -> SluScore:
    """Warns twice: of few given points, then of few again."""

    def own(count, seed):
        return parts(points(count, "classification", seed), rank, size, "sampler")

    score = fitted(network(), own(200, 1))
    return score.partial_fit(own(90, 2), calibration=own(6, 3)).calibrate(own(5, 4))


def strictly(fit: Callable[[], SluScore]) -> SluScore:
    """Where the user makes warnings errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        return fit()


def fitted_apart(rank: int, size: int, *, calibrate: bool) -> SluScore:
    """Every process goes on from a score of its own."""
    own, more = (parts(points(200, "classification", seed), rank, size, "sampler") for seed in (1, 2))
    score = SLU(network(), "classification", rank=4).fit(own, calibration=False, group=False)
    return score.calibrate(more) if calibrate else score.partial_fit(more, calibration=False)


def gathered_apart(rank: int, size: int, *, calibrate: bool) -> SluScore:
    """Scores of which every process has another, as queries are gathered."""
    data = points(200, "classification")
    score = fitted(network(), parts(data, rank, size, "sampler"))
    if calibrate and rank == 0:
        score.calibrate(DataLoader(points(100, "classification", 7), batch_size=16), group=False)
    elif not calibrate:
        score = SLU(network(), "classification", rank=4).fit(parts(data, rank, size, "sampler"), group=False)
    score.flag(parts(data, rank, size, "sampler"), gather=True)
    return score


def other_settings(rank: int, size: int) -> None:
    """Scores of the same data that differ in what is no number of them."""
    data = points(200, "classification")
    score = SLU(network(), "classification", rank=4, ridge=0.5 if rank else 0.01)
    score.fit(DataLoader(data, batch_size=16), calibration=False, group=False)(
        parts(data, rank, size, "sampler"), gather=True
    )


def shuffled_apart(rank: int, size: int, own: DataLoader) -> None:
    """A sampler of which one process has not been told the epoch."""
    data = points(81, "classification", 5)
    sampler = DistributedSampler(data, size, rank, shuffle=True)
    sampler.set_epoch(rank)
    fitted(network(), own)(DataLoader(data, batch_size=16, sampler=sampler), gather=True)


def for_four(rank: int) -> DataLoader:
    """A part of four, of which two are there."""
    return parts(points(200, "classification", 3), rank, 4, "sampler")


class DataLoaderDispatcher(list):
    """In the name of accelerate's class, of which one process reads every batch for all."""


def exchanged(what: str) -> None:
    processes = Processes(None)
    with processes.together("an exchange"):
        processes.gathered(what, 1)


def pid_of_first() -> int:
    """Of the process that the last one interrupts."""
    told = [0] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(told, os.getpid())
    return told[0]


def interrupting(loader, pid: int):
    """A loader that sends a signal to a process, which waits by then."""
    for place, batch in enumerate(loader):
        if place == 2:
            time.sleep(2)
            os.kill(pid, signal.SIGINT)
            time.sleep(0.3)
        yield batch


def interrupted_in(where: str, pid: int) -> None:
    """An exchange in which the first process waits, and is sent a signal by the last."""
    processes, tensor = Processes(None), torch.ones(3)
    with processes.together(where):
        if os.getpid() == pid and where == "twice":
            with processes._stepping():
                os.kill(pid, signal.SIGINT)
                os.kill(pid, signal.SIGINT)
                time.sleep(60)
        if os.getpid() != pid and where != "twice":
            time.sleep(1)
            os.kill(pid, signal.SIGINT)
            time.sleep(0.3)
            if where == "both":
                raise KeyboardInterrupt
        if where != "the end":
            processes.add_up([tensor])
            assert tensor.tolist() == [2, 2, 2]


def cases(rank: int, size: int) -> dict[str, Callable[[], SluScore | None]]:
    data = points(200, "classification")
    own = parts(data, rank, size, "sampler")
    all_of = DataLoader(data, batch_size=16)
    shuffled = DataLoader(data, batch_size=16, shuffle=True)
    first, last = rank == 0, rank == size - 1
    pid = pid_of_first()
    other = network()
    torch.nn.init.zeros_(other[0].bias) if last else None
    nan = points(200, "classification")
    nan.tensors[0][150 + rank] = float("nan")
    few, tiny = (parts(points(count, "classification"), rank, size, "sampler") for count in (90, 7))
    return {
        "a loader fails": lambda: fitted(network(), failing(own, 2) if last else slow(own)),
        "at the first batch": lambda: fitted(network(), failing(own, 0) if first else own),
        "not finite": lambda: fitted(network(), parts(nan, rank, size, "cut")),
        "the same data": lambda: fitted(network(), all_of),
        "the same data, shuffled, no scale": lambda: fitted(network(), shuffled, scale=None),
        "no data": lambda: fitted(network(), []),
        "no calibration points": lambda: fitted(network(), own, calibration=[]),
        "other settings": lambda: fitted(network(), own, rank=5 + rank),
        "other weights": lambda: fitted(other, own),
        "other exchanges": lambda: exchanged("points" if first else "scores"),
        "scores of other data go on": lambda: fitted_apart(rank, size, calibrate=False),
        "scores of other data are calibrated": lambda: fitted_apart(rank, size, calibrate=True),
        "another ridge": lambda: fitted(network(), own, ridge=0.5 if last else 0.01),
        "another estimator": lambda: fitted(network(), own, estimator="residual" if last else "ratio"),
        "scores of two fits": lambda: gathered_apart(rank, size, calibrate=False),
        "scores of two calibrations": lambda: gathered_apart(rank, size, calibrate=True),
        "scores of two ridges": lambda: other_settings(rank, size),
        "another epoch": lambda: shuffled_apart(rank, size, own),
        "points for four": lambda: fitted(network(), for_four(rank)),
        "calibration points for four": lambda: fitted(network(), own, calibration=for_four(rank)),
        "queries for four": lambda: SLU(network(), "classification", rank=4).fit(own)(for_four(rank), gather=True),
        "one reads for all": lambda: fitted(network(), DataLoaderDispatcher(own)),
        "a rank above the data": lambda: fitted(network(), few, rank=100),
        "a warning of fit is an error": lambda: strictly(lambda: fitted(network(), tiny)),
        "a warning of partial_fit is an error": lambda: strictly(lambda: calibrated_on_few(rank, size)),
        "interrupted": lambda: fitted(network(), Interrupted(own) if last else slow(own)),
        "interrupted while it waits": lambda: fitted(network(), interrupting(own, pid) if last else own),
        "interrupted in a sum": lambda: interrupted_in("a sum", pid),
        "interrupted at the end": lambda: interrupted_in("the end", pid),
        "both interrupted": lambda: interrupted_in("both", pid),
        "interrupted twice": lambda: interrupted_in("twice", pid),
        "sound": lambda: fitted(network(), own if not last else []),
        "sound, tiny": lambda: fitted(network(), tiny),
        "sound, calibrated on few": lambda: calibrated_on_few(rank, size),
    }


def outcome(case: Callable[[], SluScore | None]) -> dict:
    begun = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            score = case()
            told = {} if score is None else {"points": score.state.points, "sum": float(score(QUERIES).sum())}
        except SluError as reason:
            told = {"error": type(reason).__name__, "text": str(reason)}
        except KeyboardInterrupt:
            told = {"error": "KeyboardInterrupt", "text": ""}
    told["warnings"] = sum(issubclass(each.category, CalibrationWarning) for each in caught)
    told["handler"] = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return told | {"seconds": time.monotonic() - begun}


if __name__ == "__main__":
    with group() as rank:
        wanted = cases(rank, torch.distributed.get_world_size())
        tell({name: outcome(case) for name, case in wanted.items() if name in sys.argv[1:] or len(sys.argv) == 1})
