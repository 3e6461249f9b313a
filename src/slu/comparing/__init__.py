"""Comparing scores: the metrics, what every method would take, and how it does."""

from slu.comparing.board import Board
from slu.comparing.bootstrap import RESAMPLES, Estimate, Judgement, Scored, judge, judge_all
from slu.comparing.compare import compare
from slu.comparing.metrics import Detection, checked_scores, detect
from slu.comparing.plan import Plan, PlanRow, plan
from slu.comparing.registry import METHODS, at_budget
from slu.comparing.results import BoardRow, Failure
from slu.comparing.shared_gradients import GradientScore, read_shared

__all__ = [
    "METHODS",
    "RESAMPLES",
    "Board",
    "BoardRow",
    "Detection",
    "Estimate",
    "Failure",
    "GradientScore",
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
    "read_shared",
]
