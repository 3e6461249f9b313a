"""Comparing scores: the metrics, what every method would take, and how it does."""

from slu.comparing.board import Board
from slu.comparing.bootstrap import Estimate, Judgement, judge
from slu.comparing.compare import compare
from slu.comparing.equal_budget import at_budget
from slu.comparing.metrics import Detection, detect
from slu.comparing.plan import Plan, PlanRow, plan
from slu.comparing.results import BoardRow, Failure

__all__ = [
    "Board",
    "BoardRow",
    "Detection",
    "Estimate",
    "Failure",
    "Judgement",
    "Plan",
    "PlanRow",
    "at_budget",
    "compare",
    "detect",
    "judge",
    "plan",
]
