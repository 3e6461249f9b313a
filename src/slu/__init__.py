"""How unsure a trained PyTorch network is about an input, in a few copies of its parameters.

The public surface is what stands here; everything else may change. It is imported when it is asked for, so that
the command line can answer before torch is there.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slu import errors, likelihoods
    from slu.budgets import Cost
    from slu.comparing import Board, Plan, at_budget, compare, plan
    from slu.errors import SluError
    from slu.methods import (
        SCOD,
        SLU,
        SWAG,
        Calibration,
        Checkpoint,
        DeepEnsemble,
        DiagonalLaplace,
        Energy,
        Entropy,
        Explanation,
        LocalEnsemble,
        LowRankLaplace,
        MaxLogit,
        MaxProbability,
        Method,
        Score,
        SluScore,
        train_ensemble,
    )
    from slu.sketches import SketchSpec

__version__ = "0.1.0"

__all__ = [
    "SCOD",
    "SLU",
    "SWAG",
    "Board",
    "Calibration",
    "Checkpoint",
    "Cost",
    "DeepEnsemble",
    "DiagonalLaplace",
    "Energy",
    "Entropy",
    "Explanation",
    "LocalEnsemble",
    "LowRankLaplace",
    "MaxLogit",
    "MaxProbability",
    "Method",
    "Plan",
    "Score",
    "SketchSpec",
    "SluError",
    "SluScore",
    "at_budget",
    "compare",
    "errors",
    "likelihoods",
    "plan",
    "train_ensemble",
]

_ELSEWHERE = {
    "budgets": ("Cost",),
    "comparing": ("Board", "Plan", "at_budget", "compare", "plan"),
    "errors": ("SluError",),
    "sketches": ("SketchSpec",),
}
_PLACES = {name: place for place, names in _ELSEWHERE.items() for name in names}
_PACKAGES = ("errors", "likelihoods")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'slu' has no attribute {name!r}")
    if name in _PACKAGES:
        return import_module(f"slu.{name}")
    found = getattr(import_module(f"slu.{_PLACES.get(name, 'methods')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
