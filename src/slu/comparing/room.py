"""What a method takes by its own plan, and whether that is free: asked before a fit that could end the process."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from slu.budgets import Cost, shown
from slu.budgets.memory import free_bytes
from slu.comparing.material import Material
from slu.core.protocols import Method
from slu.errors import OutOfMemoryError
from slu.gradients import Network


def cost_of(method: Method, outputs: int | None, data: Material) -> Cost:
    """The method's plan: fitting in batches of the train set, all else in batches of the inside set.

    Raises:
        TypeError: The method's `cost` gives something else.
    """
    fit, query = (_asked(method, outputs, batch) for batch in (data.train_batch, data.batch))
    return replace(fit, artefact=query.artefact, querying=query.querying)


def _asked(method: Method, outputs: int | None, batch: int | None) -> Cost:
    found: Any = method.cost(outputs=outputs, batch=batch or 1)
    if not isinstance(found, Cost):
        raise TypeError(f"cost() must give a slu.budgets.Cost, got a {type(found).__name__}")
    return found


def check_room(method: Method, cost: Cost) -> None:
    """Refuse a method whose plan is beyond the memory that is free.

    Linux promises more memory than there is and ends the process that comes to use it: no exception,
    and every row of the others gone with it.

    Raises:
        OutOfMemoryError: It is; the message names what is planned, what is free, and what takes less.
    """
    if cost.trainings:
        return  # planned is the training of networks, which are there already: a fit checks them
    device = _device(method)
    need, free = max(cost.fitting, cost.querying), free_bytes(device)
    if free is not None and need > free:
        release()
        free = free_bytes(device)
    if free is None or need <= free:
        return
    raise OutOfMemoryError(
        f"by plan it holds {shown(cost.fitting)} while fitting and {shown(cost.querying)} while querying, beside the "
        f"model and one batch's activations; {shown(free)} are free on {device}, so it was not begun. Take a smaller "
        "budget or rank, fewer parameters (params=), smaller batches, or free memory"
    )


def release() -> None:
    """Give back what nobody holds any more; torch keeps a GPU's memory for itself, and the driver calls it used."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _device(method: Method) -> torch.device:
    """Of the network the method differentiates, or of its model; the CPU where it has neither."""
    network, model = (getattr(method, name, None) for name in ("network", "model"))
    if isinstance(network, Network):
        return network.selection.device
    found = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if found is None else found.device
