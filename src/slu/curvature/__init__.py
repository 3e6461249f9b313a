"""How a network is differentiated: products with its curvature, and gradients of single samples."""

from slu.curvature.batches import Batch, batch_count, batches, check_finite, is_one_batch
from slu.curvature.diagonal import NEGATIVE, exact_diagonal, hutchinson_diagonal, without_negative
from slu.curvature.factors import Factors
from slu.curvature.fingerprint import Fingerprint
from slu.curvature.general import GeneralGradients
from slu.curvature.gradients import Passed, SampleGradients
from slu.curvature.network import Forward, Network
from slu.curvature.outputs import CURVATURES, OutputSpace
from slu.curvature.products import Curvature
from slu.curvature.rows import Meter, Pieces, Rows, out_of_memory, squared_lengths
from slu.curvature.withheld import Pool, Withheld, collected, kept_apart, known_points

__all__ = [
    "CURVATURES",
    "NEGATIVE",
    "Batch",
    "Curvature",
    "Factors",
    "Fingerprint",
    "Forward",
    "GeneralGradients",
    "Meter",
    "Network",
    "OutputSpace",
    "Passed",
    "Pieces",
    "Pool",
    "Rows",
    "SampleGradients",
    "Withheld",
    "batch_count",
    "batches",
    "check_finite",
    "collected",
    "exact_diagonal",
    "hutchinson_diagonal",
    "is_one_batch",
    "kept_apart",
    "known_points",
    "out_of_memory",
    "squared_lengths",
    "without_negative",
]
