"""SLU itself."""

from slu.core.calibration import Calibration
from slu.core.checkpoint import Checkpoint
from slu.core.defaults import USUAL_RIDGE, USUAL_SCALE
from slu.core.explain import Explanation
from slu.core.protocols import Method, Score
from slu.core.score import SluScore
from slu.core.slu import SLU

__all__ = [
    "SLU",
    "USUAL_RIDGE",
    "USUAL_SCALE",
    "Calibration",
    "Checkpoint",
    "Explanation",
    "Method",
    "Score",
    "SluScore",
]
