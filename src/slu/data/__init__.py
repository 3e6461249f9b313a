"""Whatever a user passes as data, as checked batches; which points are held out; are two passes the same data?"""

from slu.data.batches import Batch, batch_count, batches, check_finite, is_one_batch
from slu.data.fingerprint import Fingerprint
from slu.data.holdout import Pool, Withheld, collected, kept_apart, known_points

__all__ = [
    "Batch",
    "Fingerprint",
    "Pool",
    "Withheld",
    "batch_count",
    "batches",
    "check_finite",
    "collected",
    "is_one_batch",
    "kept_apart",
    "known_points",
]
