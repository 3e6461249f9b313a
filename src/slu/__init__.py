"""How unsure a trained PyTorch network is about an input, in a few copies of its parameters.

The public surface is what stands here; everything else may change.
"""

from slu import errors, likelihoods
from slu.comparing import Plan, plan
from slu.errors import SluError
from slu.methods import SLU, Checkpoint, SluScore
from slu.sketches import SketchSpec

__version__ = "0.1.0"

__all__ = ["SLU", "Checkpoint", "Plan", "SketchSpec", "SluError", "SluScore", "errors", "likelihoods", "plan"]
