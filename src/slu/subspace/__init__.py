"""The subspace that the data pin down, held in sketch space."""

from slu.subspace.basis import Revealed, orthonormal_rows, reveal
from slu.subspace.nystrom import Nystrom
from slu.subspace.single_pass import SinglePass
from slu.subspace.sketched import (
    ESTIMATORS,
    Convergence,
    Energies,
    SketchedSubspace,
    SketchedVectors,
)

__all__ = [
    "ESTIMATORS",
    "Convergence",
    "Energies",
    "Nystrom",
    "Revealed",
    "SinglePass",
    "SketchedSubspace",
    "SketchedVectors",
    "orthonormal_rows",
    "reveal",
]
