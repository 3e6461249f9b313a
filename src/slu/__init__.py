"""How unsure a trained PyTorch network is about an input, in a few copies of its parameters.

The public surface is what stands here; everything else may change. It is imported when it is asked for, so that
the command line can answer before torch is there.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slu import errors, likelihoods
    from slu.baselines import (
        KNN,
        SCOD,
        SWAG,
        DeepEnsemble,
        DiagonalLaplace,
        Energy,
        Entropy,
        GradNorm,
        LocalEnsemble,
        LowRankLaplace,
        Mahalanobis,
        MaxLogit,
        MaxProbability,
        RelativeMahalanobis,
        ViM,
        train_ensemble,
    )
    from slu.budgets import Cost
    from slu.comparing import Board, Plan, at_budget, compare, plan
    from slu.core import (
        SLU,
        Calibration,
        Checkpoint,
        DiagonalScale,
        Explanation,
        FactoredScale,
        Lanczos,
        Method,
        Probes,
        Score,
        SluScore,
        Stream,
    )
    from slu.diagnosis import Diagnosis, doctor
    from slu.errors import SluError
    from slu.sketches import SketchSpec

__version__ = "0.1.0"

__all__ = [
    "KNN",
    "SCOD",
    "SLU",
    "SWAG",
    "Board",
    "Calibration",
    "Checkpoint",
    "Cost",
    "DeepEnsemble",
    "Diagnosis",
    "DiagonalLaplace",
    "DiagonalScale",
    "Energy",
    "Entropy",
    "Explanation",
    "FactoredScale",
    "GradNorm",
    "Lanczos",
    "LocalEnsemble",
    "LowRankLaplace",
    "Mahalanobis",
    "MaxLogit",
    "MaxProbability",
    "Method",
    "Plan",
    "Probes",
    "RelativeMahalanobis",
    "Score",
    "SketchSpec",
    "SluError",
    "SluScore",
    "Stream",
    "ViM",
    "at_budget",
    "compare",
    "doctor",
    "errors",
    "likelihoods",
    "plan",
    "train_ensemble",
]

_EXPORTS = {
    "baselines": (
        "KNN", "SCOD", "SWAG", "DeepEnsemble", "DiagonalLaplace", "Energy", "Entropy", "GradNorm", "LocalEnsemble",
        "LowRankLaplace", "Mahalanobis", "MaxLogit", "MaxProbability", "RelativeMahalanobis", "ViM", "train_ensemble",
    ),
    "budgets": ("Cost",),
    "comparing": ("Board", "Plan", "at_budget", "compare", "plan"),
    "diagnosis": ("Diagnosis", "doctor"),
    "errors": ("SluError",),
    "core": (
        "SLU", "Calibration", "Checkpoint", "DiagonalScale", "Explanation", "FactoredScale", "Lanczos", "Method",
        "Probes", "Score", "SluScore", "Stream",
    ),
    "sketches": ("SketchSpec",),
}  # fmt: skip
_PLACES = {name: place for place, names in _EXPORTS.items() for name in names}
_PACKAGES = ("errors", "likelihoods")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'slu' has no attribute {name!r}")
    if name in _PACKAGES:
        return import_module(f"slu.{name}")
    value = getattr(import_module(f"slu.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
