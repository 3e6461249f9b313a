"""Peaks of memory, measured by a script in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PINNED = {
    # One arena, and everything above 16 KB straight from and back to the kernel: otherwise glibc keeps
    # freed memory for later and the peak shows what was freed before as well, 2 MB of an encoder's activations.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "16384",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    # The same for MKL, which otherwise keeps the buffers of its products: up to 5 MB with large matrices.
    "MKL_DISABLE_FAST_MM": "1",
    # One thread: each has a stack and scratch of its own, and how many run at once depends on the machine's load.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

needs_resettable_peak = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the high-water mark can be reset on Linux only"
)


def measured(script: str, *arguments: object) -> Any:
    """What a script of tests/memory prints as JSON."""
    path = Path(__file__).with_name("memory") / script
    command = [sys.executable, str(path), *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | PINNED, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
