"""The flat view of a module's chosen parameters, and which weights exactly they are."""

from slu.parameters.fingerprint import described, difference, fingerprint, summary
from slu.parameters.selection import Choice, Segment, Selection, select

__all__ = [
    "Choice",
    "Segment",
    "Selection",
    "described",
    "difference",
    "fingerprint",
    "select",
    "summary",
]
