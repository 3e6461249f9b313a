"""Data sets as they come from upstream, read a batch at a time, and the shifts of them."""

from slu_experiments.data.opening import PARTS, expand, families, names, open_set
from slu_experiments.data.source import Memory, Normalized, Source, Subset, batches, stack

__all__ = [
    "PARTS",
    "Memory",
    "Normalized",
    "Source",
    "Subset",
    "batches",
    "expand",
    "families",
    "names",
    "open_set",
    "stack",
]
