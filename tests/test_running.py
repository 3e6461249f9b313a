"""The runner of several processes: results by rank, failures seen, nothing left running."""

import time

import pytest

from running import RunError, needs_processes, run_together, started

pytestmark = needs_processes

SUMS = """
import sys, torch
from running import group, tell
with group() as rank:
    own = torch.tensor([float(rank + 1)])
    torch.distributed.all_reduce(own)
    tell({"rank": rank, "sum": own, "given": sys.argv[1:], "threads": torch.get_num_threads()})
"""

SLEEPS = """
import subprocess, sys, time
from running import tell
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
tell("begun")
time.sleep(600)
"""


def test_results_by_rank():
    results = run_together(SUMS, 2, "fit", 3)
    assert [each["rank"] for each in results] == [0, 1]
    assert all(each["sum"].item() == 3 and each["given"] == ["fit", "3"] and each["threads"] == 1 for each in results)


def test_a_failing_script_is_seen(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "import os\nfrom running import tell\nif os.environ['RANK'] == '1':\n    raise SystemExit(7)\ntell(5)"
    )
    with pytest.raises(RunError, match="ended with code"):
        run_together(path, 2)


def test_nothing_is_left_running():
    with started(SLEEPS, 1) as run:
        deadline = time.monotonic() + 60
        while run.told(0) is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert run.told(0) == "begun" and len(run.running()) == 3  # the launcher, a worker and its child
        with pytest.raises(RunError, match="not done after"):
            run.results(0.2)
        assert not run.running()
