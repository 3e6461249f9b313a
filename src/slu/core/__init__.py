"""SLU itself: settings, fit, state, score, readout, calibration, explanation."""

from slu.artifacts.checkpoint import Checkpoint
from slu.core.calibration import Calibration
from slu.core.directions import Probes
from slu.core.explain import Explanation
from slu.core.fit import SLU
from slu.core.protocols import Method, Score
from slu.core.resolve import USUAL_RIDGE
from slu.core.scales import DiagonalScale, FactoredScale
from slu.core.score import SluScore
from slu.core.solvers import Lanczos, Stream
from slu.core.state import FittedState

__all__ = [
    "SLU",
    "USUAL_RIDGE",
    "Calibration",
    "Checkpoint",
    "DiagonalScale",
    "Explanation",
    "FactoredScale",
    "FittedState",
    "Lanczos",
    "Method",
    "Probes",
    "Score",
    "SluScore",
    "Stream",
]
