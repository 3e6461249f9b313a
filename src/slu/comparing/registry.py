"""The registry of methods: one row per method, read by `plan`, `compare` and every figure, and `at_budget`, which
makes them all in the same memory.

A new method is a row here, beside its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any

from torch import nn

from slu.artifacts.pictures import COLOURS
from slu.baselines.base import copies_held
from slu.baselines.deep_ensemble import DeepEnsemble, deep_ensemble_cost
from slu.baselines.diagonal_laplace import DiagonalLaplace, diagonal_laplace_cost
from slu.baselines.eigenbasis import eigenbasis_cost
from slu.baselines.gradnorm import GradNorm
from slu.baselines.knn import KNN
from slu.baselines.local_ensemble import LocalEnsemble
from slu.baselines.low_rank_laplace import LowRankLaplace, low_rank_laplace_cost
from slu.baselines.mahalanobis import Mahalanobis, RelativeMahalanobis
from slu.baselines.outputs import Energy, Entropy, MaxLogit, MaxProbability
from slu.baselines.scod import SCOD, scod_cost
from slu.baselines.swag.swag import SWAG, swag_cost
from slu.baselines.vim import ViM
from slu.budgets import Budget, Cost, Size, parse
from slu.comparing.candidates import Maker, ReadBy
from slu.core import SLU
from slu.core.protocols import Method
from slu.diagnosis.timing import Passes
from slu.errors import BudgetError, SettingError, unknown
from slu.gradients import Forward
from slu.likelihoods import Likelihood, Multilabel, Regression, resolve
from slu.parameters import Choice, select

MEMBERS, CLASS_LOGITS, MANY_PASSES = "members", "class logits", "many passes"
"""What a method may need: trained networks of an ensemble; outputs that are logits of classes; as many passes over
the data as its rank, so that it takes part by name only."""


_SAMPLES = 50  # networks that SWAG draws for a query


@dataclass(frozen=True)
class Problem:
    """What all methods of a comparison share.

    Attributes:
        copies: Of the parameters, in the budget.
        members: Networks of an ensemble.
        settings: Keywords of every method that differentiates: params, forward, seed.
    """

    model: nn.Module
    likelihood: Likelihood
    budget: Budget
    copies: int
    members: Sequence[nn.Module]
    settings: dict[str, Any]


def _by_products(_: int, outputs: int, of: Passes) -> tuple[float, float]:
    return 5 / 3 * of.backward, of.gradients(outputs)


def _by_gradients(_: int, outputs: int, of: Passes) -> tuple[float, float]:
    return of.gradients(outputs), of.gradients(outputs)


def _by_training(_: int, __: int, of: Passes) -> tuple[float, float]:
    return of.backward, _SAMPLES * of.forward


def _by_members(members: int, _: int, of: Passes) -> tuple[None, float]:
    return None, members * of.forward


def _within_budget(entry: Entry, of: Problem) -> Method:
    return entry.kind(of.model, of.likelihood, budget=of.budget, **entry.settings, **of.settings)


def _of_outputs(entry: Entry, of: Problem) -> Method:
    return entry.kind(of.model, forward=of.settings["forward"])


def _of_features(entry: Entry, of: Problem) -> Method:
    taken = signature(entry.kind).parameters
    return entry.kind(of.model, of.likelihood, **{key: each for key, each in of.settings.items() if key in taken})


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
        build: Makes it for a problem, within its budget; may refuse, a budget that is too small for example.
        cost: From rank and size, for the plan, in which the rank is the number of copies of the parameters in the
            budget, as in the paper. None where the plan has no row for it; those of SLU depend on its sketch.
        seconds: From rank, outputs and measured passes to seconds per batch, estimated: of one pass of the fit (None
            where it is a training of unknown length), and of a query. None as for the cost.
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
    seconds: Callable[[int, int, Passes], tuple[float | None, float]] | None = None
    ranked: bool = True
    needs: str | None = None
    reading: str | None = None
    plan_note: str = ""
    memory_note: str = ""

    def rank(self, floats: int, parameters: int) -> int:
        """The rank that a budget holds; 0 where it holds none."""
        copies = copies_held(floats, parameters)
        return copies if self.ranked else min(copies, 1)


METHODS: dict[str, Entry] = {
    "SLU": Entry(SLU, COLOURS[0], "o"),
    "SLU lanczos": Entry(  # the paper's score
        SLU, "#1B3A5C", "8", {"solver": "lanczos", "scale": None, "ridge": 0.0}, needs=MANY_PASSES, reading="variance",
        seconds=_by_products,
    ),
    "LocalEnsemble": Entry(LocalEnsemble, COLOURS[3], "^", cost=eigenbasis_cost, seconds=_by_products),
    "LocalEnsemble hessian": Entry(LocalEnsemble, COLOURS[4], "v", settings={"curvature": "hessian"}),
    "LowRankLaplace": Entry(LowRankLaplace, COLOURS[1], "s", cost=low_rank_laplace_cost, seconds=_by_products),
    "DiagonalLaplace": Entry(
        DiagonalLaplace, COLOURS[2], "D", cost=diagonal_laplace_cost, seconds=_by_gradients, ranked=False,
        memory_note="DiagonalLaplace keeps 1p at any budget.",
    ),
    "SCOD": Entry(
        SCOD, COLOURS[5], "P", cost=scod_cost, seconds=_by_gradients,
        plan_note="SCOD holds T = 6k + 4 vectors while fitting",
        memory_note="SCOD holds T vectors of p numbers while fitting, 6k + 4 by default.",
    ),
    "SWAG": Entry(
        SWAG, COLOURS[6], "X", cost=swag_cost, seconds=_by_training,
        plan_note="SWAG keeps mean and square besides; the paper counts its k deviations alone",
        memory_note="SWAG keeps mean and square beside its k deviations, and statistics of BatchNorm for each sample.",
    ),
    "DeepEnsemble": Entry(
        DeepEnsemble, COLOURS[7], "p", build=_of_members, cost=deep_ensemble_cost, seconds=_by_members,
        needs=MEMBERS,
        plan_note="DeepEnsemble's rank is its members, each a training from scratch",
        memory_note="DeepEnsemble's first member is the model itself, so m members keep (m - 1)p beside it, and to fit "
        "is the peak of training them.",
    ),
    "Mahalanobis": Entry(
        Mahalanobis, "#1F6F50", "d", build=_of_features,
        memory_note="Mahalanobis keeps a covariance and means of features at any budget.",
    ),
    "RelativeMahalanobis": Entry(
        RelativeMahalanobis, "#5FA777", "H", build=_of_features, needs=CLASS_LOGITS,
        memory_note="RelativeMahalanobis keeps two covariances and means of features at any budget.",
    ),
    "KNN": Entry(
        KNN, "#7A6FB0", ".", build=_of_features,
        memory_note="KNN keeps the features of at most 10,000 points at any budget, and is planned for so many.",
    ),
    "ViM": Entry(
        ViM, "#A65E2E", "$V$", build=_of_features, needs=CLASS_LOGITS,
        memory_note="ViM keeps directions of features at any budget.",
    ),
    "GradNorm": Entry(GradNorm, "#8C2D3F", "$G$", build=_of_features, needs=CLASS_LOGITS),
    "MaxLogit": Entry(MaxLogit, "#444444", "*", build=_of_outputs, needs=CLASS_LOGITS),
    "MaxProbability": Entry(MaxProbability, "#666666", "<", build=_of_outputs, needs=CLASS_LOGITS),
    "Entropy": Entry(Entropy, "#888888", ">", build=_of_outputs, needs=CLASS_LOGITS),
    "Energy": Entry(Energy, "#AAAAAA", "h", build=_of_outputs, needs=CLASS_LOGITS),
}  # fmt: skip
"""Every method of slu, in the order of tables."""


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

    Equal memory is of what is kept for queries, as the paper counts it. What that leaves out, the peaks of fitting
    and what SCOD, SWAG, DeepEnsemble and DiagonalLaplace hold besides, a board shows and says in its notes. SLU keeps
    its scale of the budget, and at most 80 kB of calibration beside it. Methods of features keep what these need,
    whatever the budget.

    Args:
        model: The trained network.
        likelihood: As for `SLU`.
        budget: "3p" (copies of the parameters), "2GB", or a whole number of floats.
        members: Trained networks of an ensemble, the model itself being one of them or not; as many
            of the first as the budget holds take part. Without any there is no DeepEnsemble.
        methods: Names from the registry; by default all but "SLU lanczos", the paper's score by as many
            passes as its rank; scores of the outputs alone only where these are logits of classes.
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
    meaning, selection = resolve(likelihood), select(model, params)
    amount = parse(budget, selection.count, selection.dtype.itemsize)
    copies = METHODS["DeepEnsemble"].rank(amount.floats, selection.count)
    problem = Problem(model, meaning, budget, copies, members, {"params": params, "forward": forward, "seed": seed})
    if methods is None:
        there = {
            None: True,
            MEMBERS: bool(members),
            CLASS_LOGITS: not isinstance(meaning, Regression | Multilabel),
            MANY_PASSES: False,
        }
        methods = [name for name, entry in METHODS.items() if there[entry.needs]]
    made: dict[str, Maker] = {}
    for name in [methods] if isinstance(methods, str) else methods:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
        make, reading = partial(METHODS[name].build, METHODS[name], problem), METHODS[name].reading
        made[name] = make if reading is None else ReadBy(make, reading)
    return made
