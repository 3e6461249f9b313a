"""Settings that every method takes and checks in the same way."""

from __future__ import annotations

from torch import nn

from slu.budgets import BASELINES, Amount, Budget, Cost, parse, size_for, size_of
from slu.budgets.memory import check_budget, check_fits, free_bytes
from slu.checks import whole
from slu.core.shape import USUAL_BUDGET
from slu.data.batches import Inputs
from slu.errors import BudgetError, ModelError, SettingError
from slu.gradients import Forward, Network
from slu.likelihoods import Likelihood, resolve
from slu.parameters import Choice, Selection, select


def subject(
    model: nn.Module, likelihood: str | Likelihood, params: Choice, forward: Forward | None
) -> tuple[Network, Likelihood]:
    """The network that is differentiated and what its outputs mean, from what the user gave."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    return Network(model, select(model, params), forward), resolve(likelihood)


def settle_rank(method: str, rank: int | None, budget: Budget | None, selection: Selection) -> int:
    """The rank of a method that keeps k copies of the parameters: given, or as many as a budget holds.

    Without either the budget is the usual one of SLU, so that what stands side by side by default
    holds the same.

    Raises:
        BudgetError: The budget cannot be read, holds less than one copy or than the rank given,
            or is more than is free.
        SettingError: A rank that is no whole number of at least 1, or above p.
    """
    if rank is not None:
        rank = whole("the rank", rank, least=1)
        if rank > selection.count:
            raise SettingError(f"rank {rank} is above the number of selected parameters, {selection.count}")
        if budget is None:
            return rank
    amount = parse(USUAL_BUDGET if budget is None else budget, selection.count, selection.dtype.itemsize)
    held = BASELINES[method].rank(amount.floats, selection.count)
    if rank is not None and rank > held:
        raise BudgetError(
            f"the budget {amount.text!r} holds rank {held} of {method}, not {rank}; leave one of the two out"
        )
    if held < 1:
        raise BudgetError(
            f"the budget {amount.text!r} is {amount.floats / selection.count:.2g} copies of the {selection.count:,} "
            f"parameters; {method} keeps at least one: give '1p' or more, or choose fewer parameters with params="
        )
    check_room(method, rank or held, amount, selection)
    return rank or held


def check_room(method: str, rank: int, amount: Amount, selection: Selection) -> None:
    """Refuse what a budget decided, where it is beyond the memory that is free."""
    free = free_bytes(selection.device)
    check_budget(amount, selection.dtype.itemsize, free)
    check_fits(amount, BASELINES[method].cost(rank, size_of(selection, 10)), free)


def baseline_cost(method: str, rank: int, network: Network, outputs: int | None, batch: int | Inputs) -> Cost:
    """Bytes kept, and at the peaks of fitting and querying, of a method in the planner's table.

    Args:
        outputs: t; by default as many as the model's last layer seems to have.
        batch: Inputs of a batch, of the data while fitting and of a query; or such a batch.
    """
    return BASELINES[method].cost(rank, size_for(network, outputs, batch))
