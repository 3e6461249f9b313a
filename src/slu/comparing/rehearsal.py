"""Before anything is fitted: the network is called on a point of every set, and torch is warmed up."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import nn

from slu.comparing.contenders import Contender
from slu.comparing.material import Material, random_state_kept
from slu.core.protocols import Method
from slu.core.slu import SLU
from slu.core.solvers import SOLVERS
from slu.data import batches
from slu.data.batches import Inputs
from slu.errors import DataError
from slu.gradients import Network, out_of_memory


def rehearse(invited: Sequence[Contender], data: Material) -> list[Contender]:
    """Call a contender's network on one point of every set, and torch's derivatives on a network of our own.

    Without a contender that has a network nothing happens: what a method of the user's own calls is
    not known. Methods that are made by functions are made for this only where nobody else has a
    network, and then the first alone that can be made.

    Returns:
        The contenders, in order; one that was made for this hands out what was made.

    Raises:
        DataError: The network takes the points of the train set and not those of another, which is named.
    """
    found, method = _somebody(invited)
    network = getattr(method, "network", None)
    if isinstance(network, Network):
        _check(network, data)
        _warm_up(network.selection.device)
    return found


def _somebody(invited: Sequence[Contender]) -> tuple[list[Contender], Method | None]:
    """A method with a network if there is one already, or else the first that can be made."""
    found = list(invited)
    for contender in found:
        if contender.ready and isinstance(getattr(method := contender.make(), "network", None), Network):
            return found, method
    for place, contender in enumerate(found):
        if contender.ready:
            continue
        with suppress(Exception), random_state_kept():  # it is asked again in its turn, and its row says why it refuses
            method = contender.make()
            # Handed out once: in its turn it is let go of, as all others.
            found[place] = replace(contender, make=[method].pop)
            return found, method
    return found, None


def _check(network: Network, data: Material) -> None:
    for name, example in data.examples.items():
        reason = _refusal(network, example)
        if reason is None:
            continue
        if name == "train" or out_of_memory(reason):
            return  # not the fault of one set: rows will say what it is
        raise DataError(
            f"{name}: the network cannot be called on the first point of this set, though it can on the train set's: "
            f"{type(reason).__name__}: {' '.join(str(reason).split())}. All sets must have inputs of the same form"
        ) from reason


def _refusal(network: Network, example: Inputs) -> Exception | None:
    try:
        with network.evaluating(), torch.no_grad():
            network.outputs(next(batches([(example, None)], network.selection.device)).inputs)
    except Exception as reason:
        return reason
    return None


def _warm_up(device: torch.device) -> None:
    """A tiny fit by every solver, and its query, that nobody times.

    The first derivatives of a process load parts of torch, for seconds, and whoever comes first would
    pay for them. They do not depend on the network, so one of six parameters does.
    """
    with suppress(Exception), random_state_kept():  # it is for the times alone
        points, model = torch.eye(2), nn.Linear(2, 2).to(device)
        for solver in SOLVERS:
            SLU(model, "classification", rank=1, solver=solver).fit(points, progress=False)(points, progress=False)
