"""The message of an out-of-memory error."""

import pytest
import torch

from slu.budgets import Cost
from slu.budgets.memory import explain_out_of_memory
from slu.errors import OutOfMemoryError

CPU = torch.device("cpu")


def refuse():
    raise AssertionError("no cost is needed where memory is enough")


def test_what_work_takes_is_planned_only_where_memory_ran_out():
    with explain_out_of_memory("scoring", refuse, CPU):
        pass
    with pytest.raises(ValueError, match="another"), explain_out_of_memory("scoring", refuse, CPU):
        raise ValueError("another")
    with pytest.raises(RuntimeError, match="another"), explain_out_of_memory("scoring", refuse, CPU):
        raise RuntimeError("another")


@pytest.mark.parametrize("reason", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes")])
def test_the_message_says_what_was_done_and_what_it_takes(reason):
    match = "out of memory while scoring.*4 kB while fitting and 3 kB while querying"
    with pytest.raises(OutOfMemoryError, match=match), explain_out_of_memory("scoring", cost, CPU):
        raise reason


def cost():
    return Cost(artefact=2000, fitting=4000, querying=3000, passes=1)
