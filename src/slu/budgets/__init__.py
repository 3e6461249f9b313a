"""From a memory budget to ranks and sizes, and what they will take: pure arithmetic."""

from slu.budgets.amount import Budget, parse
from slu.budgets.costs import Cost, Size
from slu.budgets.rule import Shape, shape_for

__all__ = ["Budget", "Cost", "Shape", "Size", "parse", "shape_for"]
