"""From a memory budget to ranks and sizes, and what they will take: pure arithmetic."""

from slu.budgets.amount import Amount, Budget, parse, shown
from slu.budgets.costs import (
    Choices,
    Cost,
    Size,
    Sketched,
    gradients,
    piece,
    sketched_lanczos,
    sketched_stream,
)
from slu.budgets.rule import Fixed, Shape, shape_for

__all__ = [
    "Amount",
    "Budget",
    "Choices",
    "Cost",
    "Fixed",
    "Shape",
    "Size",
    "Sketched",
    "gradients",
    "parse",
    "piece",
    "shape_for",
    "shown",
    "sketched_lanczos",
    "sketched_stream",
]
