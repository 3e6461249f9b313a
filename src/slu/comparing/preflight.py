"""What is checked before a fit: the network on one point of every set, and the free memory against the plan."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import nn

from slu.budgets import Cost, shown
from slu.budgets.memory import free_bytes
from slu.comparing.candidates import Candidate
from slu.comparing.evaluation_data import EvaluationData, random_state_kept
from slu.core import SLU
from slu.core.protocols import Method
from slu.core.solvers import SOLVERS
from slu.data.structure import Inputs
from slu.errors import DataError, OutOfMemoryError, out_of_memory
from slu.gradients import Network


def find_network(candidates: Sequence[Candidate]) -> tuple[list[Candidate], Network | None]:
    """The network of a candidate; None where no method has one, and what it calls is not known.

    Methods that are made by functions are made for this only where no other has a network, and then only the first that
    can be made.

    Returns:
        The candidates, in order, and the network; one that was made for this returns that method when its turn comes.
    """
    listed = list(candidates)
    for candidate in listed:
        if candidate.ready and (network := _network_of(candidate.make())) is not None:
            return listed, network
    for place, candidate in enumerate(listed):
        if candidate.ready:
            continue
        with suppress(Exception), random_state_kept():  # it is made again in its turn, and its row says why it refuses
            method = candidate.make()
            # Returned once, so that nothing here keeps it alive after its turn.
            listed[place] = replace(candidate, make=[method].pop)
            return listed, _network_of(method)
    return listed, None


def _network_of(method: Method) -> Network | None:
    network = getattr(method, "network", None)
    return network if isinstance(network, Network) else None


def preflight(network: Network, data: EvaluationData) -> None:
    """Call the network on one point of every set, and warm up torch's derivatives on a tiny one.

    Raises:
        DataError: The network takes the points of the train set and not those of another, which is named.
    """
    _check(network, data)
    _warm_up(network.selection.device)


def _check(network: Network, data: EvaluationData) -> None:
    for name, example in data.examples.items():
        try:
            outputs_on(network, example)
        except Exception as reason:
            if name == "train" or out_of_memory(reason):
                return  # not the fault of one set: the rows will say what it is
            raise DataError(
                f"{name}: the network cannot be called on the first point of this set, though it can on the train "
                f"set's: {type(reason).__name__}: {' '.join(str(reason).split())}. All sets must have inputs of the "
                "same form"
            ) from reason


def outputs_on(network: Network, example: Inputs) -> torch.Tensor:
    """The outputs for a batch of the user's, without gradients."""
    with network.evaluating(), torch.no_grad():
        return network.outputs(next(network.batches([(example, None)])).inputs)


def _warm_up(device: torch.device) -> None:
    """A tiny fit by every solver, and its query, outside of all timings.

    The first derivatives of a process load parts of torch, for seconds, which would count as the first
    method's time. They do not depend on the network, so one of six parameters is enough.
    """
    with suppress(Exception), random_state_kept():  # it affects the times alone
        points, model = torch.eye(2), nn.Linear(2, 2).to(device)
        for solver in SOLVERS:
            SLU(model, "classification", rank=1, solver=solver).fit(points, progress=False)(points, progress=False)


def cost_of(method: Method, outputs: int | None, data: EvaluationData) -> Cost:
    """The method's plan: fitting in batches of the train set, all else in batches of the inside set.

    Raises:
        TypeError: The method's `cost` gives something else.
    """
    fit, query = (method.cost(outputs=outputs, batch=batch or 1) for batch in (data.train_batch, data.batch))
    for cost in (fit, query):
        if not isinstance(cost, Cost):
            raise TypeError(f"cost() must give a slu.budgets.Cost, got a {type(cost).__name__}")
    return replace(fit, artefact=query.artefact, querying=query.querying)


def check_outputs(method: Method) -> None:
    """Refuse a method whose network, which was called before, has outputs at several positions of an input.

    Raises:
        DataError: It has; the message says how such scores are compared.
    """
    network = _network_of(method)
    if network is None or network.outputs_per_position is None:
        return
    raise DataError(
        f"the network has outputs at {' × '.join(map(str, network.positions))} positions of an input, for which there "
        "are as many scores, and a comparison needs one per input. Compare what is fitted before, as a function: "
        "{'SLU': lambda inputs: score(inputs, reduce='mean')}; or pool the outputs, or select a position, with forward="
    )


def check_memory(method: Method, cost: Cost) -> None:
    """Refuse a method with a plan beyond the memory that is free.

    Linux grants more memory than there is and kills the process that uses it: there is no exception, and the
    rows of all other methods are lost.

    Raises:
        OutOfMemoryError: It is; the message names what is planned, what is free, and what takes less.
    """
    if cost.trainings:
        return  # planned is the training of networks, which are there already: a fit checks them
    *_, device = parameters_of(method) or (torch.device("cpu"),)
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
    """Free what is no longer referenced; torch caches a GPU's memory, and the driver counts that as used."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def parameters_of(method: Method) -> tuple[int, int, torch.device] | None:
    """p, the bytes of one number and where they are, of the network the method differentiates or else of its model."""
    network, model = _network_of(method), getattr(method, "model", None)
    if network is not None:
        return network.selection.count, network.selection.dtype.itemsize, network.selection.device
    tensors = list(model.parameters()) if isinstance(model, nn.Module) else []
    return (sum(map(torch.numel, tensors)), tensors[0].dtype.itemsize, tensors[0].device) if tensors else None
