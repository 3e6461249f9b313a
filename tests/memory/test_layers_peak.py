"""Nothing of length p a sample is held: every row of a batch is measured in little more than its largest layer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SLACK = 2_000_000
"""Numbers: the room of small pieces, activations, scratch, and pages of libraries that are mapped in late."""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the high-water mark can be reset on Linux only"
)


def measure(way):
    environment = os.environ | {
        # As in test_peak.py: freed memory goes back to the kernel at once.
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "OMP_NUM_THREADS": "1",
    }
    script = Path(__file__).with_name("measure_layers.py")
    done = subprocess.run(
        [sys.executable, str(script), way], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["p"] > 20_000_000
    return found


def bound(found):
    """Twice the largest layer, in the check of the first batch; afterwards once."""
    return 2 * found["largest"] + SLACK


def test_eight_rows_of_twenty_million_numbers():
    found = measure("layers")
    assert found["peak"] < bound(found) < found["p"]


@pytest.mark.parametrize("way", ["held", "general"])
def test_control_whole_gradients_are_seen(way):
    """A consumer that keeps the pieces of a row, and the way that holds whole rows."""
    found = measure(way)
    assert found["peak"] > found["p"] > bound(found)
