"""The curvature of the loss over the data: products with it, rows of its root, its diagonal."""

from slu.curvature.misuse import warn_of_probabilities
from slu.curvature.products import Curvature
from slu.curvature.root import CURVATURES, OutputSpace, RootRows, check_finite_diagonal, exact_diagonal

__all__ = [
    "CURVATURES",
    "Curvature",
    "OutputSpace",
    "RootRows",
    "check_finite_diagonal",
    "exact_diagonal",
    "warn_of_probabilities",
]
