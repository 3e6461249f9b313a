"""The subspace that the data determine, stored in sketch space."""

from slu.subspace.basis import ESTIMATORS, Convergence, Energies, SketchedSubspace, orthonormal_rows
from slu.subspace.nystrom import Nystrom
from slu.subspace.single_pass import SinglePass
from slu.subspace.sketched import SketchedVectors, reveal

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
