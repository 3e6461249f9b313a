"""`make bench`: what things cost, as ratios taken in one run.

python -m benchmarks             everything
python -m benchmarks core        products, Lanczos steps, queries
python -m benchmarks layers      gradients of single samples, layer by layer and the general way
python -m benchmarks stream      fits in one pass, against a training pass and against Lanczos; queries
python -m benchmarks sketches    time and accuracy of every sketch
python -m benchmarks growth      how cost grows with p, n, t, k, s
python -m benchmarks path        the files of slu that a default fit and a default query pass through
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks import core, growth, layers, path, sketches, stream

PARTS: dict[str, Callable[[], None]] = {
    "core": core.main,
    "layers": layers.main,
    "stream": stream.main,
    "sketches": sketches.main,
    "growth": growth.main,
    "path": path.main,
}

if __name__ == "__main__":
    asked = sys.argv[1:] or list(PARTS)
    if any(name not in PARTS for name in asked):
        sys.exit(f"unknown part; valid are {', '.join(PARTS)}")
    for name in asked:
        PARTS[name]()
