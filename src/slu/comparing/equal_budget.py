"""Every method of the paper's comparison in the same memory: what is kept for queries, as the paper counts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from slu.baselines.deep_ensemble import DeepEnsemble
from slu.baselines.diagonal_laplace import DiagonalLaplace
from slu.baselines.local_ensemble import LocalEnsemble
from slu.baselines.low_rank_laplace import LowRankLaplace
from slu.baselines.outputs import Energy, Entropy, MaxLogit, MaxProbability
from slu.baselines.scod import SCOD
from slu.baselines.swag.swag import SWAG
from slu.budgets import BASELINES, Budget, parse
from slu.comparing.contenders import Maker, ReadBy
from slu.core.protocols import Method
from slu.core.slu import SLU
from slu.errors import BudgetError, SettingError, unknown
from slu.gradients import Forward
from slu.likelihoods import Likelihood, Multilabel, Regression, resolve
from slu.parameters import Choice, select


@dataclass(frozen=True)
class Problem:
    """What all methods share.

    Attributes:
        model, likelihood: As for every method.
        budget: As it was written, and the members of an ensemble that it holds.
        members: Networks of an ensemble.
        settings: Keywords that every fitted method takes: params, forward, seed.
    """

    model: nn.Module
    likelihood: Likelihood
    budget: Budget
    copies: int
    members: Sequence[nn.Module]
    settings: dict[str, Any]


def _fitted(kind: Callable[..., Method], **own: Any) -> Callable[[Problem], Method]:
    return lambda of: kind(of.model, of.likelihood, budget=of.budget, **own, **of.settings)


def _of_outputs(kind: Callable[..., Method]) -> Callable[[Problem], Method]:
    return lambda of: kind(of.model, forward=of.settings["forward"])


def _ensemble(of: Problem) -> Method:
    if not of.members:
        raise SettingError("DeepEnsemble needs trained networks; pass members=[...], `train_ensemble` makes them")
    if of.copies < 2:
        raise BudgetError(
            f"the budget {of.budget!r} holds {of.copies} members; an ensemble has at least two, for '2p' or more"
        )
    return DeepEnsemble(list(of.members)[: of.copies], of.likelihood, forward=of.settings["forward"])


CONTENDERS: dict[str, Callable[[Problem], Method]] = {
    "SLU": _fitted(SLU),
    "SLU lanczos": _fitted(SLU, solver="lanczos", scale=None, ridge=0.0),
    "LocalEnsemble": _fitted(LocalEnsemble),
    "LocalEnsemble hessian": _fitted(LocalEnsemble, curvature="hessian"),
    "LowRankLaplace": _fitted(LowRankLaplace),
    "DiagonalLaplace": _fitted(DiagonalLaplace),
    "SCOD": _fitted(SCOD),
    "SWAG": _fitted(SWAG),
    "DeepEnsemble": _ensemble,
    "MaxLogit": _of_outputs(MaxLogit),
    "MaxProbability": _of_outputs(MaxProbability),
    "Entropy": _of_outputs(Entropy),
    "Energy": _of_outputs(Energy),
}
"""Who takes part, by name; a new method is a row here."""

READ_BY = {"SLU lanczos": "variance"}
"""Who is compared by another reading than a score's default: the paper's score is the paper's reading."""

BY_NAME_ONLY = ("SLU lanczos",)
"""They take as many passes over the data as their rank, where all others take a few."""

OUTPUTS_ONLY = ("MaxLogit", "MaxProbability", "Entropy", "Energy")


def at_budget(  # noqa: PLR0913 (five of the eight are keyword-only)
    model: nn.Module,
    likelihood: str | Likelihood,
    budget: Budget = "3p",
    *,
    members: Sequence[nn.Module] = (),
    methods: Sequence[str] | None = None,
    params: Choice = None,
    forward: Forward | None = None,
    seed: int = 0,
) -> dict[str, Maker]:
    """Methods for `compare` that keep the same memory: each takes the rank that the budget holds.

    Equal memory is of what is kept for queries, as the paper counts it; a board shows what that
    leaves out:

    - "To fit" is the peak beside the model: the gradients in flight and what a method holds, for SCOD
      T p with T = 6 k + 4.
    - SWAG keeps mean and square beside its k deviations, and with BatchNorm its statistics for each
      sample.
    - The first member of DeepEnsemble is the model itself: three members are 2p beside it.
    - DiagonalLaplace has no rank to choose: it is always 1p.
    - SLU keeps its scale, 1p, of the budget, and at most 40 kB of calibration beside it.

    Args:
        model: The trained network.
        likelihood: As for `SLU`.
        budget: "3p" (copies of the parameters), "2GB", or a whole number of floats.
        members: Trained networks of an ensemble, the model itself being one of them or not; as many
            of the first as the budget holds take part. Without any there is no DeepEnsemble.
        methods: Names from the table; by default all but "SLU lanczos", the paper's score by as many
            passes as its rank, compared by its variance; and scores of the outputs alone, which read
            them as logits of classes, not for regression and multilabel.
        params, forward: As for every method.
        seed: Of every method that draws.

    Returns:
        From names to functions that make a method, called by `compare` when its turn comes: one that
        does not fit in the budget refuses there, and says so in its row.

    Raises:
        BudgetError: The budget cannot be read.
        SettingError: An unknown name.

    >>> made = at_budget(nn.Linear(99, 10), "classification", "3p", methods=["SLU", "SCOD"])
    >>> list(made), made["SCOD"]().rank
    (['SLU', 'SCOD'], 3)
    """
    found, selection = resolve(likelihood), select(model, params)
    amount = parse(budget, selection.count, selection.dtype.itemsize)
    copies = BASELINES["DeepEnsemble"].rank(amount.floats, selection.count)
    problem = Problem(model, found, budget, copies, members, {"params": params, "forward": forward, "seed": seed})
    chosen = _usual(problem) if methods is None else [methods] if isinstance(methods, str) else list(methods)
    for name in chosen:
        if name not in CONTENDERS:
            raise unknown("method", name, CONTENDERS)
    made: dict[str, Maker] = {name: partial(CONTENDERS[name], problem) for name in chosen}
    return {name: ReadBy(make, READ_BY[name]) if name in READ_BY else make for name, make in made.items()}


def _usual(problem: Problem) -> list[str]:
    left_out = set(BY_NAME_ONLY) if problem.members else {*BY_NAME_ONLY, "DeepEnsemble"}
    if isinstance(problem.likelihood, Regression | Multilabel):
        left_out |= set(OUTPUTS_ONLY)
    return [name for name in CONTENDERS if name not in left_out]
