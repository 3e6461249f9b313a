"""The subspace that the data determine, stored in sketch space."""

from slu.subspace.basis import Convergence, orthonormal_rows, reveal
from slu.subspace.nystrom import Nystrom
from slu.subspace.single_pass import SinglePass
from slu.subspace.sketched import (
    ESTIMATORS,
    Energies,
    SketchedSubspace,
    SketchedVectors,
)

__all__ = [
    "ESTIMATORS",
    "Convergence",
    "Energies",
    "Nystrom",
    "SinglePass",
    "SketchedSubspace",
    "SketchedVectors",
    "orthonormal_rows",
    "reveal",
]
