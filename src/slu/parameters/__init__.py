"""A module's chosen parameters as one flat vector, and a fingerprint that tells its weights from another network's."""

from slu.parameters.choice import Choice
from slu.parameters.fingerprint import MODEL_IN_USE, KnownWeights, described, difference, fingerprint, summary
from slu.parameters.selection import SMALL_TENSOR, Segment, Selection, matrix_shape, select
from slu.parameters.wrappers import unwrapped

__all__ = [
    "MODEL_IN_USE",
    "SMALL_TENSOR",
    "Choice",
    "KnownWeights",
    "Segment",
    "Selection",
    "described",
    "difference",
    "fingerprint",
    "matrix_shape",
    "select",
    "summary",
    "unwrapped",
]
