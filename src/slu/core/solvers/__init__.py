"""The two ways from data to a subspace: one pass (`Stream`), or k passes (`Lanczos`, the paper's)."""

from slu.core.solvers.lanczos import Lanczos
from slu.core.solvers.stream import Stream

SOLVERS = {"stream": Stream, "lanczos": Lanczos}
"""Every solver by its short name; each is its own settings and solves a `Task`."""

__all__ = ["SOLVERS", "Lanczos", "Stream"]
