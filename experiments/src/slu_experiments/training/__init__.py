"""Training: the paper's recipes, one way to follow them, and trained networks as files."""

from slu_experiments.training.augmentation import Augmentation
from slu_experiments.training.descent import Course, train
from slu_experiments.training.evaluation import Evaluation, accuracy, evaluate
from slu_experiments.training.recipes import RECIPES, Recipe, by_autocast
from slu_experiments.training.weights import checkpoint_path, learned_from, split, trained, weights_path

__all__ = [
    "RECIPES",
    "Augmentation",
    "Course",
    "Evaluation",
    "Recipe",
    "accuracy",
    "by_autocast",
    "checkpoint_path",
    "evaluate",
    "learned_from",
    "split",
    "train",
    "trained",
    "weights_path",
]
