"""Whatever a user passes as data, as checked batches; which points are held out; are two passes the same data?"""

from slu.data.batches import Batch, ReadAhead, batch_count, batches, check_finite, check_repeatable, is_one_batch
from slu.data.fingerprint import Fingerprint
from slu.data.holdout import HoldOut, Reservoir, collected, held_out_count, known_points

__all__ = [
    "Batch",
    "Fingerprint",
    "HoldOut",
    "ReadAhead",
    "Reservoir",
    "batch_count",
    "batches",
    "check_finite",
    "check_repeatable",
    "collected",
    "held_out_count",
    "is_one_batch",
    "known_points",
]
