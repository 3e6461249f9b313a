"""Data sets as they come from upstream, read a batch at a time, and the shifts of them."""

from slu.experiments.data.opening import PARTS, expand, families, names, open_set
from slu.experiments.data.source import Memory, Source, Subset, batches, stack

__all__ = ["PARTS", "Memory", "Source", "Subset", "batches", "expand", "families", "names", "open_set", "stack"]
