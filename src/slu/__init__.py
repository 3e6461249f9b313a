"""How unsure a trained PyTorch network is about an input, in a few copies of its parameters.

The public surface is what stands here; everything else may change.
"""

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
