"""Putting scores side by side: the metrics they are judged by, and what they would take."""

from slu.comparing.metrics import Detection, detect
from slu.comparing.plan import Plan, PlanRow, plan

__all__ = ["Detection", "Plan", "PlanRow", "detect", "plan"]
