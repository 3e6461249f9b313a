"""Which code made a result, and how much memory the process came to hold."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path

import slu
from slu.artifacts.artifact import versions

try:
    import resource
except ImportError:  # not on Windows
    resource = None


@cache
def code_version() -> dict[str, str]:
    """Versions of what numbers depend on, and a checksum of slu's own source, which a version alone does not tell."""
    root = Path(slu.__file__).parent
    state = hashlib.blake2b(digest_size=8)
    for path in sorted(root.rglob("*.py")):
        state.update(path.relative_to(root).as_posix().encode() + b"\x1f" + path.read_bytes() + b"\x1f")
    return {**versions(), "source": state.hexdigest()}


def peak_memory() -> int | None:
    """Bytes that this process held at most so far, whatever ran in it before; None where the system does not tell."""
    if resource is None:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
