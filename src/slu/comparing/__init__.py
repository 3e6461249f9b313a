"""Putting scores side by side: the metrics they are judged by, what they would take, and how they do."""

from slu.comparing.board import Board
from slu.comparing.compare import compare
from slu.comparing.equal_budget import at_budget
from slu.comparing.intervals import Estimate, Judgement, judge
from slu.comparing.metrics import Detection, detect
from slu.comparing.plan import Plan, PlanRow, plan
from slu.comparing.rows import BoardRow, Failure

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
