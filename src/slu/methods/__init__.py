"""The uncertainty scores, one file each."""

from slu.methods.checkpoint import Checkpoint
from slu.methods.slu import SLU, SluScore

__all__ = ["SLU", "Checkpoint", "SluScore"]
