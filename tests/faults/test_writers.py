"""Processes that are killed at each of their system calls, or write one path at the same time.

`make test-matrix` kills a fit at every call, `make test-slow` at every seventh. Kills at random moments of the clock
are in tests/artifacts/test_atomic.py and tests/core/test_checkpoint.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from matrix import step as every

HERE = Path(__file__).parent


def told(script: Path, *arguments) -> dict:
    """What a script prints as JSON, in a fresh process that has the modules of the tests."""
    paths = os.pathsep.join([str(HERE.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_save_killed_at_its_calls_leaves_the_old_or_the_new_file(tmp_path, step):
    counts = told(HERE / "killed_calls.py", tmp_path, "save", step)
    print("kills of a save:", counts)
    assert counts["wrong"] == 0 and counts["tried"] == counts["old"] + counts["new"]
    assert counts["old"] > 10 and counts["new"] > 0, "control: kills before and after the renaming"


@pytest.mark.parametrize(
    ("solver", "step"),
    [
        ("stream", 40),
        pytest.param("stream", every(7), marks=pytest.mark.slow),
        pytest.param("lanczos", every(7), marks=pytest.mark.slow),
    ],
)
def test_a_fit_killed_at_its_calls_goes_on_to_the_same_numbers(tmp_path, solver, step):
    counts = told(HERE / "killed_calls.py", tmp_path, solver, step)
    print(f"kills of a checkpointed fit, {solver}:", counts)
    assert counts["wrong"] == 0 and counts["same"] == counts["tried"] > 4


@pytest.mark.slow
def test_two_processes_on_one_path(tmp_path):
    rounds = 150
    counts = told(HERE.parent / "artifacts" / "writers.py", "together", tmp_path, rounds, 0)
    print(f"two processes, {rounds} saves each:", counts)
    assert "failed" not in counts and counts["codes"] == [0, 0] and counts["left"] == []
    assert counts["last"][1] == rounds - 1 and counts["seen"] > 10
