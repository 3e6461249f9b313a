"""A random transformer of a billion parameters in bfloat16, fitted by the default call on a few sequences.

    python -m benchmarks.billion [--sequences 8] [--tokens 128] [--batch 2] [--depth 20] [--width 2048] [--json FILE]
    python -m benchmarks.billion --network swin    the paper's Swin transformer, in float32, on images
    python -m benchmarks.billion --network swin --paper 30 20000000    the same by the paper's Lanczos, of its k and s

The paper's score takes a gradient per output, 990 for an image. It is timed on random mixtures of the outputs, two and
six: what one more takes is four in the difference.

With `--json docs/results/paper/cost-imagenet-swin-NAME.json` it is a column of the page of `slu-paper publish`.

The weights are drawn in bfloat16 tensor by tensor, so that there is never a copy in float32. The default call is
`SLU(model, "classification").fit(batches)`; with fewer than 38 points it holds none out, so the score is not
calibrated and a query is the uncalibrated reading, one gradient per input. Prints the peaks of this process' memory and
the seconds of fit and query over those of a forward and backward pass.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import Pairs, kept, train_pass
from benchmarks.networks import Encoder, parameters
from benchmarks.timing import clock_name, reset_peak, seconds, status
from slu import SLU, Probes
from slu.budgets import shown
from slu_experiments.models import build
from slu_experiments.results import made_here

WORDS, OUTPUTS, HEADS = 32_000, 10, 16
OUTPUTS_OF_SWIN = 990


def transformer(width: int, depth: int) -> nn.Module:
    """Built without memory and then filled: modules with weights of their own would be float32 first."""
    with torch.device("meta"):
        model = Encoder(width, depth, WORDS, OUTPUTS, HEADS).to(torch.bfloat16)
    model = model.to_empty(device="cpu")
    for name, value in model.named_parameters():
        with torch.no_grad():
            if value.ndim > 1:
                value.normal_(std=1 / math.sqrt(value.shape[1]))
            else:
                value.fill_(float(name.endswith("weight")))  # norms have weights of one and biases of zero
    return model.eval()


def data(options: argparse.Namespace) -> Pairs:
    """Random sequences or images with random labels, in batches."""
    if options.network == "swin":
        inputs, labels = torch.randn(options.sequences, 3, 224, 224), OUTPUTS_OF_SWIN
    else:
        inputs, labels = torch.randint(WORDS, (options.sequences, options.tokens)), OUTPUTS
    targets = torch.randint(labels, (options.sequences,))
    return list(zip(inputs.split(options.batch), targets.split(options.batch), strict=True))


def paper_method(model: nn.Module, rank: int, sketch_size: int) -> SLU:
    """The paper's score; its transform in blocks, which for sketches this long takes far less than other kinds."""
    settings: dict[str, Any] = {"solver": "lanczos", "scale": None, "ridge": 0.0, "sketch": "block_srft"}
    return SLU(model, "classification", rank=rank, sketch_size=sketch_size, **settings)


def per_gradient(score: Any, inputs: Tensor) -> float:
    """Seconds by which the score of these takes longer for each further gradient."""
    few, more = (partial(score, inputs, reading="variance", outputs=Probes(count)) for count in (2, 6))
    few()  # the first query checks the model
    return (seconds(more) - seconds(few)) / 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("transformer", "swin"), default="transformer")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--paper", type=int, nargs=2, metavar=("RANK", "SKETCH_SIZE"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    swin = options.network == "swin"
    model = build("swin").eval() if swin else transformer(options.width, options.depth)
    batches = data(options)
    loaded = reset_peak()
    plain = seconds(train_pass(model, batches))
    plain_peak = status("VmHWM")

    reset_peak()
    method = SLU(model, "classification") if options.paper is None else paper_method(model, *options.paper)
    fits: list[Any] = []
    fitting = seconds(lambda: fits.append(method.fit(batches, progress=True)))
    fit_peak = status("VmHWM")
    score = fits[0]

    reset_peak()
    inputs: Tensor = batches[0][0] if options.paper is None else batches[0][0][:1]
    with torch.no_grad():
        forward = seconds(lambda: model(inputs))
    gradients = 1 if options.paper is None else OUTPUTS_OF_SWIN if swin else OUTPUTS
    each = seconds(lambda: score(inputs)) if options.paper is None else per_gradient(score, inputs)
    counts = kept(score, model)
    results = {
        "parameters": parameters(model),
        "type": str(next(model.parameters()).dtype),
        "points": options.sequences,
        "rank, sketch size": [len(score.state.subspace.basis), method.settings.sketch.size],
        "clock": f"{clock_name()}, {torch.get_num_threads()} threads",
        "forward + backward, seconds per point": plain / options.sequences,
        "fit, seconds per point": fitting / options.sequences,
        "fit / forward + backward": fitting / plain,
        "gradients per point of a query": gradients,
        "query, seconds per point": gradients * each / len(inputs),
        "query / forward": gradients * each / forward,
        "numbers kept": counts["basis"] + counts["beyond"],
        "kept / parameters": (counts["basis"] + counts["beyond"]) / parameters(model),
        "memory with the network": shown(loaded),
        "peak of forward + backward": shown(plain_peak),
        "peak of the fit": shown(fit_peak),
        "peak of the query": shown(status("VmHWM")),
    }
    for name, value in results.items():
        print(f"{name:<40}{value}")
    if options.json:
        title = "SLU's default" if options.paper is None else "SLU as in the paper"
        command = " ".join(["python -m benchmarks.billion", *sys.argv[1:]])
        made = {**made_here(), "torch": f"torch {torch.__version__}"}
        content = {"title": title, "command": command, "made": made, "measured": results}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
