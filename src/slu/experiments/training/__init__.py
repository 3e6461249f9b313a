"""Training: the paper's recipes, one way to follow them, and trained networks as files."""

from slu.experiments.training.augmentation import Augmentation
from slu.experiments.training.descent import Course, train
from slu.experiments.training.evaluation import Evaluation, accuracy, evaluate
from slu.experiments.training.recipes import RECIPES, Recipe
from slu.experiments.training.sources import Normalized, split
from slu.experiments.training.weights import checkpoint_path, learned_from, trained, weights_path

__all__ = [
    "RECIPES",
    "Augmentation",
    "Course",
    "Evaluation",
    "Normalized",
    "Recipe",
    "accuracy",
    "checkpoint_path",
    "evaluate",
    "learned_from",
    "split",
    "train",
    "trained",
    "weights_path",
]
