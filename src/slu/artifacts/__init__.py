"""Files of named tensors and a header, and pictures: written whole or not at all."""

from slu.artifacts.files import FORMAT, check_writable, digest, read, write
from slu.artifacts.generations import read_newest, write_generation

__all__ = [
    "FORMAT",
    "check_writable",
    "digest",
    "read",
    "read_newest",
    "write",
    "write_generation",
]
