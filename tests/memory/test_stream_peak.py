"""Peak memory of a fit in one pass does not grow with the points: measured in fresh processes."""

import pytest

from fresh_process import measured, needs_resettable_peak

FEW, MANY = 64, 512
NOISE = 2 << 20
"""Pages of libraries that are mapped in late. The sketches of the 448 points between are 9 MB."""

pytestmark = needs_resettable_peak


def measure(kind, points, hold=0):
    found = measured("measure_stream.py", kind, points, hold)
    assert found["points"] == points
    return found["peak"]


@pytest.mark.parametrize("kind", ["mlp", pytest.param("conv", marks=pytest.mark.slow)])
def test_eight_times_the_points_take_no_more(kind):
    few, many = measure(kind, FEW), measure(kind, MANY)
    print(f"{kind}: {few / 1e6:.1f} MB at {FEW} points, {many / 1e6:.1f} MB at {MANY}")
    assert abs(many - few) < NOISE


@pytest.mark.slow
def test_somebody_who_holds_a_sketch_of_every_point_is_seen():
    """Control: s numbers a point, of which all are there at the end."""
    assert measure("mlp", MANY, hold=1) - measure("mlp", FEW, hold=1) > 2 * NOISE
