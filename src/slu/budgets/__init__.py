"""From a memory budget to ranks and sizes, and what they will take."""

from slu.budgets.amount import Amount, Budget, parse, shown
from slu.budgets.costs import Cost, Sketched, gradients, sketched_lanczos, sketched_stream, verified
from slu.budgets.rule import Fixed, Shape, shape_for
from slu.budgets.size import Size, likely_outputs, size_for, size_of

__all__ = [
    "Amount",
    "Budget",
    "Cost",
    "Fixed",
    "Shape",
    "Size",
    "Sketched",
    "gradients",
    "likely_outputs",
    "parse",
    "shape_for",
    "shown",
    "size_for",
    "size_of",
    "sketched_lanczos",
    "sketched_stream",
    "verified",
]
