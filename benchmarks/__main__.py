"""`make bench`: what things cost, as ratios taken in one run.

python -m benchmarks             everything
python -m benchmarks cost        the default fit and query, numbers kept and peaks, beside the aims and beside peers
python -m benchmarks growth      how the default call grows with n, p and t
python -m benchmarks core        products, Lanczos steps, the share of the eigenspace that each solver's basis captures
python -m benchmarks layers      per-example gradients, layer by layer and the general way
python -m benchmarks sketches    time and accuracy of every sketch
python -m benchmarks processes   how a fit by 1, 2 and 4 processes scales, and what it sends
python -m benchmarks path        the files of slu that a default fit and a default query pass through

--json FILE keeps what cost and growth measure, beside what is in the file already; --picture FILE draws it.
--quick takes fewer rounds and points.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import core, cost, growth, layers, path, processes, sketches

STORED: dict[str, Callable[[bool], dict[str, Any]]] = {"cost": cost.main, "growth": growth.main}
PRINTED: dict[str, Callable[[], None]] = {
    "core": core.main,
    "layers": layers.main,
    "sketches": sketches.main,
    "path": path.main,
    "processes": processes.main,
}


def main() -> None:
    names = [*STORED, *PRINTED]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    if any(name not in names for name in options.parts):
        parser.error(f"unknown part; valid are {', '.join(names)}")
    stored = json.loads(options.json.read_text()) if options.json is not None and options.json.exists() else {}
    for name in options.parts or names:
        if name in PRINTED:
            PRINTED[name]()
            continue
        stored[name] = STORED[name](options.quick)
        if options.json is not None:
            options.json.write_text(json.dumps(stored, indent=1) + "\n")
    if options.picture is not None:
        from benchmarks.picture import draw  # matplotlib is an extra

        draw(stored, options.picture)


if __name__ == "__main__":
    main()
