"""A fit of several processes that was killed goes on to the same numbers; its files say by how many it was begun."""

from pathlib import Path

import pytest
import torch

from running import needs_processes, run_together

SCRIPT = Path(__file__).with_name("resumed.py")
KILLS = {"stream": (1, 19), "lanczos": (0, 60), "diagonal": (1, 30)}
"""The process that is killed, and its batch; a pass has 22 of them."""

pytestmark = needs_processes


@pytest.fixture(scope="module")
def expected():
    return run_together(SCRIPT, 2, "none", "stream,lanczos,diagonal", -1, 0, seconds=200)


def same(found, expected, *, exactly=True) -> None:
    for each in found:
        assert "error" not in each, each
        for name, value in expected.items():
            torch.testing.assert_close(each[name], value, rtol=0 if exactly else 1e-9, atol=0 if exactly else 1e-9)


@pytest.mark.parametrize(
    "solver", [pytest.param(each, marks=[] if each == "stream" else pytest.mark.slow) for each in KILLS]
)
def test_killed_and_started_again(solver, expected, tmp_path):
    killed, place = KILLS[solver]
    first = run_together(SCRIPT, 2, tmp_path, solver, killed, place, seconds=120, check=False)
    assert first[killed] is None
    begun = {path.name for path in tmp_path.iterdir() if path.suffix != ".lock"}
    assert {solver, f"{solver}.0-of-2"} <= begun, begun
    (other,) = run_together(SCRIPT, 1, tmp_path, solver, -1, 0, seconds=120)
    assert other[solver]["error"] == "MismatchError"
    assert "was begun by 2 processes, and here are 1; start as many" in other[solver]["text"]
    again = run_together(SCRIPT, 2, tmp_path, solver, -1, 0, seconds=120)
    same([each[solver] for each in again], expected[0][solver])
    # It is finished: one file, which one process or three take as well, and compare with their data.
    assert {path.name for path in tmp_path.iterdir()} <= {solver, f"{solver}.previous"}
    for size in (1, 3):
        told = run_together(SCRIPT, size, tmp_path, solver, -1, 0, seconds=120)
        same([each[solver] for each in told], expected[0][solver], exactly=False)
    for each in run_together(SCRIPT, 2, tmp_path, solver, -1, 0, 3, seconds=120):
        assert each[solver]["error"] == "MismatchError" and "other data" in each[solver]["text"]
