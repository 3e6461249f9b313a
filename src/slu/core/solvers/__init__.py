"""The solvers of SLU by name, and which settings belong to which."""

from __future__ import annotations

from typing import Any

from slu.checks import whole
from slu.core.shape import Settled
from slu.core.solvers.lanczos import LanczosSolver
from slu.core.solvers.stream import StreamSolver
from slu.errors import SettingError, unknown

SOLVERS = ("lanczos", "stream")


def chosen_solver(
    name: str | None,
    settled: Settled,
    curvature: str,
    *,
    precondition: int,
    keep: float | None,
    labels_per_point: int | str,
    oversampling: int | None,
) -> LanczosSolver | StreamSolver:
    """A solver from what the user gave to SLU.

    Without a name the stream: at least as good on real data, in one pass (docs/solvers.md). Settings that
    only Lanczos has choose Lanczos.

    Raises:
        SettingError: An unknown name, a setting of the other solver, or a value that cannot work.
    """
    if name is None:
        name = "lanczos" if precondition or keep is not None or curvature == "hessian" else "stream"
    if name not in SOLVERS:
        raise unknown("solver", name, SOLVERS)
    if name == "lanczos":
        _refuse(name, labels_per_point=(labels_per_point, 1), oversampling=(oversampling, None))
        return LanczosSolver(
            settled.rank, settled.from_budget, whole("precondition", precondition), keep, curvature == "hessian"
        )
    _refuse(name, precondition=(precondition, 0), keep=(keep, None))
    if curvature == "hessian":
        raise SettingError("the Hessian is no sum of squares, as one pass needs it; use solver='lanczos'")
    if labels_per_point != "all":
        labels_per_point = whole("labels_per_point (a number, or 'all')", labels_per_point, least=1)
    if labels_per_point != 1 and curvature == "empirical-fisher":
        raise SettingError("labels_per_point: curvature='empirical-fisher' has the data's labels, one gradient a point")
    if labels_per_point == "all" and curvature == "fisher":
        raise SettingError("curvature='fisher' is of drawn labels; all of them make curvature='ggn'")
    oversampling = settled.rank if oversampling is None else whole("oversampling", oversampling, least=0)
    return StreamSolver(settled.rank, settled.from_budget, labels_per_point, oversampling)


def _refuse(solver: str, **given: tuple[Any, Any]) -> None:
    for name, (value, usual) in given.items():
        if value != usual:
            raise SettingError(f"{name}={value!r} is no setting of solver={solver!r}; leave it out")
