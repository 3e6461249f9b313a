"""The registry of methods: one row per method, read by `plan`, `at_budget`, `compare` and every figure.

A new method is a row here, beside its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from slu.artifacts.pictures import COLOURS
from slu.baselines.base import copies_held
from slu.baselines.deep_ensemble import DeepEnsemble, deep_ensemble_cost
from slu.baselines.diagonal_laplace import DiagonalLaplace, diagonal_laplace_cost
from slu.baselines.eigenbasis import eigenbasis_cost
from slu.baselines.local_ensemble import LocalEnsemble
from slu.baselines.low_rank_laplace import LowRankLaplace, low_rank_laplace_cost
from slu.baselines.outputs import Energy, Entropy, MaxLogit, MaxProbability
from slu.baselines.scod import SCOD, scod_cost
from slu.baselines.swag.swag import SWAG, swag_cost
from slu.budgets import Budget, Cost, Size
from slu.core import SLU
from slu.core.protocols import Method
from slu.errors import BudgetError, SettingError
from slu.likelihoods import Likelihood

MEMBERS, CLASS_LOGITS, MANY_PASSES = "members", "class logits", "many passes"
"""What a method may need: trained networks of an ensemble; outputs that are logits of classes; as many passes over
the data as its rank, so that it takes part by name only."""


@dataclass(frozen=True)
class Problem:
    """What all methods of a comparison share.

    Attributes:
        model, likelihood: As for every method.
        budget: As it was written.
        copies: Copies of the parameters that it holds.
        members: Networks of an ensemble.
        settings: Keywords of every method that differentiates: params, forward, seed.
    """

    model: nn.Module
    likelihood: Likelihood
    budget: Budget
    copies: int
    members: Sequence[nn.Module]
    settings: dict[str, Any]


def _within_budget(entry: Entry, of: Problem) -> Method:
    return entry.kind(of.model, of.likelihood, budget=of.budget, **entry.settings, **of.settings)


def _of_outputs(entry: Entry, of: Problem) -> Method:
    return entry.kind(of.model, forward=of.settings["forward"])


def _of_members(entry: Entry, of: Problem) -> Method:
    if not of.members:
        raise SettingError("DeepEnsemble needs trained networks; pass members=[...], `train_ensemble` makes them")
    if of.copies < 2:
        raise BudgetError(
            f"the budget {of.budget!r} holds {of.copies} members; an ensemble has at least two, for '2p' or more"
        )
    return entry.kind(list(of.members)[: of.copies], of.likelihood, forward=of.settings["forward"])


@dataclass(frozen=True)
class Entry:
    """One method.

    Attributes:
        kind: Its class.
        colour, marker: In every figure.
        settings: Keywords that make it what its name says.
        build: Makes it for a problem, within its budget.
        cost: From rank and size, for the plan, in which the rank is the number of copies of the parameters in the
            budget, as in the paper. None where the plan has no row for it; those of SLU depend on its sketch.
        ranked: Whether the rank can be chosen; else one copy is what it takes.
        needs: One of the words above, or None.
        reading: By which it is compared where none is asked for; None for the score's default.
        plan_note: What a reader of a plan must know beside the numbers.
        memory_note: What a reader of a board must know to compare its memory.
    """

    kind: Callable[..., Any]
    colour: str
    marker: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    build: Callable[[Entry, Problem], Method] = _within_budget
    cost: Callable[[int, Size], Cost] | None = None
    ranked: bool = True
    needs: str | None = None
    reading: str | None = None
    plan_note: str = ""
    memory_note: str = ""

    def make(self, problem: Problem) -> Method:
        """The method for a problem; may refuse, a budget that is too small for example."""
        return self.build(self, problem)

    def rank(self, floats: int, parameters: int) -> int:
        """The rank that a budget holds; 0 where it holds none."""
        copies = copies_held(floats, parameters)
        return copies if self.ranked else min(copies, 1)


METHODS: dict[str, Entry] = {
    "SLU": Entry(SLU, COLOURS[0], "o"),
    "SLU lanczos": Entry(  # the paper's score
        SLU, "#1B3A5C", "8", {"solver": "lanczos", "scale": None, "ridge": 0.0}, needs=MANY_PASSES, reading="variance"
    ),
    "LocalEnsemble": Entry(LocalEnsemble, COLOURS[3], "^", cost=eigenbasis_cost),
    "LocalEnsemble hessian": Entry(LocalEnsemble, COLOURS[4], "v", settings={"curvature": "hessian"}),
    "LowRankLaplace": Entry(LowRankLaplace, COLOURS[1], "s", cost=low_rank_laplace_cost),
    "DiagonalLaplace": Entry(
        DiagonalLaplace, COLOURS[2], "D", cost=diagonal_laplace_cost, ranked=False,
        memory_note="DiagonalLaplace keeps 1p at any budget.",
    ),
    "SCOD": Entry(
        SCOD, COLOURS[5], "P", cost=scod_cost,
        plan_note="SCOD holds T = 6k + 4 vectors while fitting",
        memory_note="SCOD holds T vectors of p numbers while fitting, 6k + 4 by default.",
    ),
    "SWAG": Entry(
        SWAG, COLOURS[6], "X", cost=swag_cost,
        plan_note="SWAG keeps mean and square besides; the paper counts its k deviations alone",
        memory_note="SWAG keeps mean and square beside its k deviations, and statistics of BatchNorm for each sample.",
    ),
    "DeepEnsemble": Entry(
        DeepEnsemble, COLOURS[7], "p", build=_of_members, cost=deep_ensemble_cost, needs=MEMBERS,
        plan_note="DeepEnsemble's rank is its members, each a training from scratch",
        memory_note="DeepEnsemble's first member is the model itself, so m members keep (m - 1)p beside it, and to fit "
        "is the peak of training them.",
    ),
    "MaxLogit": Entry(MaxLogit, "#444444", "*", build=_of_outputs, needs=CLASS_LOGITS),
    "MaxProbability": Entry(MaxProbability, "#666666", "<", build=_of_outputs, needs=CLASS_LOGITS),
    "Entropy": Entry(Entropy, "#888888", ">", build=_of_outputs, needs=CLASS_LOGITS),
    "Energy": Entry(Energy, "#AAAAAA", "h", build=_of_outputs, needs=CLASS_LOGITS),
}  # fmt: skip
"""Every method of slu, in the order of tables."""
