"""Files of named tensors and a header, and pictures: written whole or not at all."""

from slu.artifacts.artifact import versions
from slu.artifacts.files import FORMAT, check_writable, digest, read, read_newest, write, write_generation
from slu.artifacts.locking import locked
from slu.artifacts.pictures import COLOURS, FAINT, INK, checked_ending, write_picture

__all__ = [
    "COLOURS",
    "FAINT",
    "FORMAT",
    "INK",
    "check_writable",
    "checked_ending",
    "digest",
    "locked",
    "read",
    "read_newest",
    "versions",
    "write",
    "write_generation",
    "write_picture",
]
