"""The flat view of a module's chosen parameters."""

from slu.parameters.selection import Choice, Segment, Selection, select

__all__ = ["Choice", "Segment", "Selection", "select"]
