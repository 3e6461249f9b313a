"""Putting scores side by side: the metrics they are judged by, what they would take, and how they do."""

from slu.comparing.board import Board
from slu.comparing.compare import compare
from slu.comparing.equal_budget import at_budget
from slu.comparing.intervals import RESAMPLES, Estimate, Judgement, judge, judge_all
from slu.comparing.metrics import Detection, checked_scores, detect
from slu.comparing.pictures import METHODS
from slu.comparing.plan import Plan, PlanRow, plan
from slu.comparing.resampling import Scored
from slu.comparing.rows import BoardRow, Failure

__all__ = [
    "METHODS",
    "RESAMPLES",
    "Board",
    "BoardRow",
    "Detection",
    "Estimate",
    "Failure",
    "Judgement",
    "Plan",
    "PlanRow",
    "Scored",
    "at_budget",
    "checked_scores",
    "compare",
    "detect",
    "judge",
    "judge_all",
    "plan",
]
