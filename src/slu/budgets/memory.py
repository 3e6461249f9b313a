"""How much memory is free, and refusing a budget that does not fit in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from slu.budgets import Amount, Budget, Cost, parse, shown
from slu.errors import BudgetError, OutOfMemoryError, out_of_memory
from slu.gradients.chunks import MAX_NUMBERS
from slu.parameters import Selection

_MEMINFO = Path("/proc/meminfo")


def free_bytes(device: torch.device) -> int | None:
    """Bytes that could be allocated now on a device; None where the system does not tell.

    On the CPU this is Linux' estimate of what is available without swapping, the machine's and not
    a container's limit; elsewhere the unused pages. On a GPU it is what the driver reports.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    with suppress(OSError, ValueError, IndexError):
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    with suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def numbers_within(memory: Budget | None, selection: Selection) -> int:
    """Numbers of gradients that may be in flight; the usual where nothing is said."""
    return MAX_NUMBERS if memory is None else parse(memory, selection.count, selection.dtype.itemsize).floats


@contextmanager
def explain_out_of_memory(work: str, cost: Callable[[], Cost], device: torch.device) -> Iterator[None]:
    """Turn a bare "out of memory" into an `OutOfMemoryError`: what was being done, what that takes, what takes less.

    Args:
        work: What is done inside, as "while ..." goes on.
        cost: What it should take; asked only where memory ran out.
        device: The message names its free memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as reason:
        if not out_of_memory(reason):
            raise
        planned, free = cost(), free_bytes(device)
        beside = "" if free is None else f" {shown(free)} are free now."
        fitting = 0 if free is None else planned.artefact - max(0, max(planned.fitting, planned.querying) - free)
        if fitting >= 10**3:
            beside += f" By plan budget='{min(fitting, planned.artefact // 2) // 10**3}kB' would fit."
        raise OutOfMemoryError(
            f"out of memory while {work}: {str(reason).splitlines()[0] if str(reason) else type(reason).__name__}. "
            f"By plan it holds {shown(planned.fitting)} while fitting and {shown(planned.querying)} while querying, "
            f"beside the model and one batch's activations.{beside} Smaller batches take less of the activations; a "
            "smaller sketch_size, rank or precondition, a budget, or fewer parameters (params=) less of the rest"
        ) from reason


def check_budget(amount: Amount, bytes_each: int, free: int | None) -> None:
    """Refuse, by a BudgetError, a budget that is more than all that is free."""
    if free is not None and amount.floats * bytes_each > free:
        raise BudgetError(
            f"the budget {amount.text!r} is {shown(amount.floats * bytes_each)}, {shown(free)} of memory are free; "
            f"at most '{free // 10**6}MB' would fit, less what fitting needs besides"
        )


def check_fits(amount: Amount, cost: Cost, free: int | None, growth: float = 1.0) -> None:
    """Refuse, by a BudgetError that names a budget that would fit, a fit with a peak above what is free.

    Args:
        growth: Bytes that a fit holds more with every byte that is kept for queries.
    """
    if free is None or max(cost.fitting, cost.querying) <= free:
        return
    # 2 % less, because a sketch's state and scratch change in steps with its size.
    fitting = int(0.98 * cost.artefact - max((cost.fitting - free) / growth, cost.querying - free))
    cure = f"a budget of '{fitting // 10**3}kB' would fit" if fitting >= 10**3 else "no budget would fit"
    raise BudgetError(
        f"with the budget {amount.text!r} fitting would hold {shown(cost.fitting)} and a query {shown(cost.querying)} "
        f"beside the model, {shown(free)} of memory are free; {cure}, or choose fewer parameters with params=..."
    )
