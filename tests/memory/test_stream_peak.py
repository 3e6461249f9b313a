"""Peak memory of a fit in one pass does not grow with the points: measured in fresh processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FEW, MANY = 128, 1024
NOISE = 2 << 20
"""Pages of libraries that are mapped in late. The sketches of the 896 points between are 18 MB."""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the high-water mark can be reset on Linux only"
)


def measure(kind, points, hold=0):
    environment = os.environ | {
        # As in test_peak.py: freed memory goes back to the kernel at once.
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "OMP_NUM_THREADS": "1",
    }
    script = Path(__file__).with_name("measure_stream.py")
    command = [sys.executable, str(script), kind, str(points), str(hold)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["points"] == points
    return found["peak"]


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_eight_times_the_points_take_no_more(kind):
    few, many = measure(kind, FEW), measure(kind, MANY)
    print(f"{kind}: {few / 1e6:.1f} MB at {FEW} points, {many / 1e6:.1f} MB at {MANY}")
    assert abs(many - few) < NOISE


def test_somebody_who_holds_a_sketch_of_every_point_is_seen():
    """Control: s numbers a point, of which all are there at the end."""
    assert measure("mlp", MANY, hold=1) - measure("mlp", FEW, hold=1) > 2 * NOISE
