"""How many files of slu a default fit and a default query pass through: what a newcomer has to follow."""

from pathlib import Path

import pytest
from benchmarks.path import Trace, traced

MOST_FILES = {"fit": 54, "query": 35}
"""Before batches were read by the signature of the model and the format of the fit, 38 and 25."""


@pytest.fixture(scope="module")
def traces():
    return traced()


@pytest.mark.parametrize("what", MOST_FILES)
def test_the_path_is_short(traces, what):
    assert len(traces[what].files) <= MOST_FILES[what], traces[what].files


def test_the_path_begins_with_the_class_and_ends_after_the_calibration(traces):
    """Control: the trace is that of a calibrated fit, of gradients and a sketch, not of nothing."""
    folders = [name.split("/")[0] for name in traces["fit"].files]
    assert folders[0] == "core"
    assert {"data", "gradients", "sketches", "subspace", "likelihoods"} <= set(folders)
    assert len(traces["fit"].functions) > len(traces["query"].functions) > len(traces["query"].files) > 5


def test_control_files_functions_and_depth_are_counted(tmp_path):
    """Two files: f calls g after the body of a class; then f calls itself by way of a function from elsewhere."""
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("def f(g):\n    class Body:\n        pass\n    return g()\n")
    two.write_text("def g():\n    return 1\n")
    names: dict = {}
    for path in (one, two):
        exec(compile(path.read_text(), str(path), "exec"), names)
    trace = Trace(Path(tmp_path))
    trace.record(lambda: names["f"](names["g"]))
    assert (trace.files, len(trace.functions), trace.depth) == (["one.py", "two.py"], 2, 2)
    trace.record(lambda: names["f"](lambda: names["f"](names["g"])))
    assert (len(trace.functions), trace.depth) == (2, 3)
