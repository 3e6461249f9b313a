"""The curvature of the loss over the data: products with it, rows of its root, its diagonal."""

from slu.curvature.diagonal import NEGATIVE, exact_diagonal, hutchinson_diagonal, without_negative
from slu.curvature.products import Curvature
from slu.curvature.root import CURVATURES, OutputSpace, RootRows

__all__ = [
    "CURVATURES",
    "NEGATIVE",
    "Curvature",
    "OutputSpace",
    "RootRows",
    "exact_diagonal",
    "hutchinson_diagonal",
    "without_negative",
]
