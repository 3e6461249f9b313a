"""The uncertainty scores, one file each."""

from slu.methods.slu import SLU, SluScore

__all__ = ["SLU", "SluScore"]
