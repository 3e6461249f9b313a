"""The example of several processes, as its first lines say to start it."""

import re
import subprocess
import sys
from pathlib import Path

from examples import many_processes
from running import needs_processes, started

SCRIPT = Path(many_processes.__file__)


def shares(printed):
    """What is flagged, by the name of the digits."""
    return dict(re.findall(r"^  (.+?) +([\d.]+% of \d+) flagged at 5%$", printed, re.MULTILINE))


@needs_processes
def test_two_processes_print_what_one_does_and_save_one_file(tmp_path):
    with started(SCRIPT, 2, tmp_path / "score.safetensors") as run:
        run.results(seconds=120)
        two = run.output
        assert not run.running()
    alone = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True, timeout=120).stdout
    assert "\n2 processes, " in f"\n{two}" and "\n1 process, " in f"\n{alone}"
    assert shares(two) == shares(alone)
    fresh, unseen = (float(each.split("%")[0]) for each in shares(two).values())
    assert fresh < 10 < unseen
    assert [path.name for path in tmp_path.iterdir()] == ["score.safetensors"]
