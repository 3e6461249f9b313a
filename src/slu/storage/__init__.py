"""Named tensors and a header in one file: written whole or not at all, read only if unharmed."""

from slu.storage.files import FORMAT, check_writable, digest, read, write
from slu.storage.generations import read_newest, write_generation

__all__ = ["FORMAT", "check_writable", "digest", "read", "read_newest", "write", "write_generation"]
