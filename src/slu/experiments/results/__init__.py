"""One folder a run, named by a hash of its configuration; tables and figures are made from nothing else."""

from slu.experiments.results.folders import Result, Store
from slu.experiments.results.naming import canonical, name_of
from slu.experiments.results.provenance import code_version, peak_memory

__all__ = ["Result", "Store", "canonical", "code_version", "name_of", "peak_memory"]
