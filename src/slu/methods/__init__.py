"""The uncertainty scores, one file each."""

from slu.methods.calibration import Calibration
from slu.methods.checkpoint import Checkpoint
from slu.methods.deep_ensemble import DeepEnsemble
from slu.methods.diagonal_laplace import DiagonalLaplace
from slu.methods.ensemble_training import train_ensemble
from slu.methods.explaining import Explanation
from slu.methods.face import Method, Score
from slu.methods.local_ensemble import LocalEnsemble
from slu.methods.low_rank_laplace import LowRankLaplace
from slu.methods.outputs import Energy, Entropy, MaxLogit, MaxProbability
from slu.methods.scod import SCOD
from slu.methods.slu import SLU
from slu.methods.slu_score import SluScore
from slu.methods.swag import SWAG

__all__ = [
    "SCOD",
    "SLU",
    "SWAG",
    "Calibration",
    "Checkpoint",
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
    "Score",
    "SluScore",
    "train_ensemble",
]
