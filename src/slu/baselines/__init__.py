"""The methods that SLU is compared with, one file each."""

from slu.baselines.deep_ensemble import DeepEnsemble, train_ensemble
from slu.baselines.diagonal_laplace import DiagonalLaplace
from slu.baselines.gradnorm import GradNorm
from slu.baselines.knn import KNN
from slu.baselines.local_ensemble import LocalEnsemble
from slu.baselines.low_rank_laplace import LowRankLaplace
from slu.baselines.mahalanobis import Mahalanobis, RelativeMahalanobis
from slu.baselines.outputs import Energy, Entropy, MaxLogit, MaxProbability
from slu.baselines.scod import SCOD
from slu.baselines.swag.swag import SWAG
from slu.baselines.vim import ViM

__all__ = [
    "KNN",
    "SCOD",
    "SWAG",
    "DeepEnsemble",
    "DiagonalLaplace",
    "Energy",
    "Entropy",
    "GradNorm",
    "LocalEnsemble",
    "LowRankLaplace",
    "Mahalanobis",
    "MaxLogit",
    "MaxProbability",
    "RelativeMahalanobis",
    "ViM",
    "train_ensemble",
]
