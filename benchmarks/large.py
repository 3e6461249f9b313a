"""A Swin transformer of the paper's size, with random weights, fitted in one pass over a few images.

    python -m benchmarks.large [--images 8] [--batch 2] [--rank 30] [--json FILE]

Prints the peak of this process' memory and the time an image. An exact query would take 990 backward passes.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import torch

from slu import SLU, Stream
from slu.budgets import shown
from slu_experiments.models import build

LABELS, SIZE = 4, 10_000


def peak() -> int:
    """Bytes of this process' memory at their highest."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rank", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = build("swin").eval()
    images = torch.randn(options.images, 3, 224, 224)
    loaded = peak()
    begun = time.perf_counter()
    for inputs in images.split(options.batch):
        torch.nn.functional.cross_entropy(model(inputs), torch.zeros(len(inputs), dtype=torch.long)).backward()
        model.zero_grad(set_to_none=True)
    plain, after_plain = time.perf_counter() - begun, peak()
    method = SLU(
        model, "classification", rank=options.rank, sketch_size=SIZE, sketch="shift",
        solver=Stream(labels_per_point=LABELS), scale=None, ridge=0.0,
    )  # fmt: skip
    begun = time.perf_counter()
    score = method.fit(list(images.split(options.batch)), calibration=False, progress=True)
    fitted = time.perf_counter() - begun
    found = {
        "parameters": method.network.selection.count,
        "images": options.images,
        "labels an image": LABELS,
        "seconds an image": fitted / options.images,
        "forward + backward, seconds an image": plain / options.images,
        "network loaded": shown(loaded),
        "peak of forward + backward": shown(after_plain),
        "peak": shown(peak()),
        "effective rank": score.diagnostics.effective_rank,
    }
    for name, value in found.items():
        print(f"{name:<38}{value}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
