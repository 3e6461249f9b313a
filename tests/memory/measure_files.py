"""Reads files and prints, as JSON, what each took in memory above the process and how it ended; run by test_limits.py.

Usage: measure_files.py PATH …
"""

import json
import sys
from pathlib import Path

import torch

from slu.artifacts import read, write
from slu.errors import SluError


def status(key: str) -> int:
    """Bytes of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{key}:")))


def main() -> None:
    torch.set_num_threads(1)
    first = Path(sys.argv[1]).with_name("warm-up.slu")
    write(first, {"a": torch.ones(3)}, {})
    read(first)
    told = []
    for path in sys.argv[1:]:
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        try:
            read(path)
            ended = "read"
        except SluError as reason:
            ended = f"{type(reason).__name__}: {reason}"
        told.append({"ended": ended, "took": status("VmHWM") - before})
    print(json.dumps(told))


if __name__ == "__main__":
    main()
