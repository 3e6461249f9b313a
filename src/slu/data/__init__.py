"""Whatever a user passes as data, as checked batches; which points are held out; are two passes the same data?"""

from slu.data.batches import Batch, ReadAhead, batch_count, batches, check_finite, check_repeatable
from slu.data.compared import ComparedData, Content
from slu.data.fingerprint import Fingerprint
from slu.data.format import Format
from slu.data.holdout import HoldOut, collected, known_points
from slu.data.reading import BatchReader
from slu.data.reservoir import HeldOut, Reservoir
from slu.data.shard import Shard
from slu.data.signature import Signature, unwrapped

__all__ = [
    "Batch",
    "BatchReader",
    "ComparedData",
    "Content",
    "Fingerprint",
    "Format",
    "HeldOut",
    "HoldOut",
    "ReadAhead",
    "Reservoir",
    "Shard",
    "Signature",
    "batch_count",
    "batches",
    "check_finite",
    "check_repeatable",
    "collected",
    "known_points",
    "unwrapped",
]
