"""Nothing of length p a sample is held: every row of a batch is measured in little more than its largest layer."""

import pytest

from fresh_process import measured, needs_resettable_peak

SLACK = 2_000_000
"""Numbers: the room of small pieces, activations, scratch, and pages of libraries that are mapped in late."""

pytestmark = needs_resettable_peak


def measure(way):
    found = measured("measure_layers.py", way)
    assert found["p"] > 20_000_000
    return found


def bound(found):
    """Twice the largest layer, in the check of the first batch; afterwards once."""
    return 2 * found["largest"] + SLACK


def test_eight_rows_of_twenty_million_numbers():
    found = measure("layers")
    assert found["peak"] < bound(found) < found["p"]


@pytest.mark.parametrize("way", ["held", pytest.param("general", marks=pytest.mark.slow)])
def test_control_whole_gradients_are_seen(way):
    """A consumer that keeps the pieces of a row, and the way that holds whole rows."""
    found = measure(way)
    assert found["peak"] > found["p"] > bound(found)
