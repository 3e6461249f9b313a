"""Every method of the registry in the same memory: what is kept for queries, as the paper counts it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import nn

from slu.budgets import Budget, parse
from slu.comparing.candidates import Maker, ReadBy
from slu.comparing.registry import CLASS_LOGITS, MANY_PASSES, MEMBERS, METHODS, Problem
from slu.errors import unknown
from slu.gradients import Forward
from slu.likelihoods import Likelihood, Multilabel, Regression, resolve
from slu.parameters import Choice, select


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
    its scale, 1p, of the budget, and at most 40 kB of calibration beside it.

    Args:
        model: The trained network.
        likelihood: As for `SLU`.
        budget: "3p" (copies of the parameters), "2GB", or a whole number of floats.
        members: Trained networks of an ensemble, the model itself being one of them or not; as many
            of the first as the budget holds take part. Without any there is no DeepEnsemble.
        methods: Names from the registry; by default all but "SLU lanczos", the paper's score by as many
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
    meaning, selection = resolve(likelihood), select(model, params)
    amount = parse(budget, selection.count, selection.dtype.itemsize)
    copies = METHODS["DeepEnsemble"].rank(amount.floats, selection.count)
    problem = Problem(model, meaning, budget, copies, members, {"params": params, "forward": forward, "seed": seed})
    chosen = _usual(problem) if methods is None else [methods] if isinstance(methods, str) else list(methods)
    made: dict[str, Maker] = {}
    for name in chosen:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
        entry = METHODS[name]
        make = partial(entry.make, problem)
        made[name] = make if entry.reading is None else ReadBy(make, entry.reading)
    return made


def _usual(problem: Problem) -> list[str]:
    missing = {MANY_PASSES}
    if not problem.members:
        missing.add(MEMBERS)
    if isinstance(problem.likelihood, Regression | Multilabel):
        missing.add(CLASS_LOGITS)
    return [name for name, entry in METHODS.items() if entry.needs not in missing]
