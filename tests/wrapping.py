"""Ways in which people wrap a model to train it, and the process group that some of them need."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import accelerate
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import compile_regions
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


@contextmanager
def process_group(folder: Path) -> Iterator[None]:
    """One process that is a group of its own."""
    store = distributed.FileStore(str(folder / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def compiled(model: nn.Module) -> nn.Module:
    """Compiled by a backend that runs the graph as it is, so that no compiler is needed."""
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def compiled_forward(model: nn.Module) -> nn.Module:
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def prepared(model: nn.Module) -> nn.Module:
    """As accelerate does it for mixed precision: the forward of the model itself is replaced."""
    states = [os.environ, *(each._shared_state for each in (AcceleratorState, PartialState, GradientState))]
    before = [dict(state) for state in states]
    AcceleratorState._reset_state(reset_partial_state=True)  # another test may have one without mixed precision
    try:
        return accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(model)
    finally:
        for state, values in zip(states, before, strict=True):
            state.clear()
            state.update(values)


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "DistributedDataParallel": DistributedDataParallel,
    "DataParallel": nn.DataParallel,
    "compiled": compiled,
    "compiled in place": compiled_in_place,
    "compiled forward": compiled_forward,
    "prepared": prepared,
    "regions": lambda model: compile_regions(model, backend="eager"),
    "compiled, then distributed": lambda model: DistributedDataParallel(compiled(model)),
    "distributed, then compiled": lambda model: compiled(DistributedDataParallel(model)),
    "prepared, distributed, compiled": lambda model: compiled(DistributedDataParallel(prepared(model))),
    "parallel twice": lambda model: nn.DataParallel(nn.DataParallel(model)),
}
"""From a plain model to a wrapped one. Those with "istributed" in their names need a process group."""
