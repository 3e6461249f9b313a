"""How a network is differentiated: products with its curvature, and gradients of single samples."""

from slu.curvature.batches import Batch, batches, check_finite, is_one_batch
from slu.curvature.fingerprint import Fingerprint
from slu.curvature.gradients import Rows, SampleGradients, out_of_memory
from slu.curvature.network import Forward, Network
from slu.curvature.products import CURVATURES, Curvature

__all__ = [
    "CURVATURES",
    "Batch",
    "Curvature",
    "Fingerprint",
    "Forward",
    "Network",
    "Rows",
    "SampleGradients",
    "batches",
    "check_finite",
    "is_one_batch",
    "out_of_memory",
]
