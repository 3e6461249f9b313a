"""Named tensors and a header in one file: written whole or not at all, read only if unharmed."""

from slu.storage.files import FORMAT, check_writable, digest, read, write

__all__ = ["FORMAT", "check_writable", "digest", "read", "write"]
