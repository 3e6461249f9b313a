"""Planned against measured peaks of fitting and querying, each in a fresh process.

Counted by the plan, which is shown the batch: vectors of length p, gradients in flight and in the layers'
results, what attention keeps beyond a plain call, the sketched basis, the sketch's state and what it works with. Not
counted: the activations of a batch in a plain call, which are subtracted, and pages of libraries that are mapped in
late, for which NOISE stands. A query is of a calibrated score, as a default fit leaves it.
"""

import json

import pytest

from fresh_process import measured, needs_resettable_peak

NEAR = 0.15
NOISE = 1 << 20

pytestmark = needs_resettable_peak

PAPER = {"scale": None, "ridge": 0.0}
LANCZOS = {"rank": 4, "budget": "3p", "solver": "lanczos", **PAPER}
STREAM = {"rank": 4, "budget": "3p", "solver": "stream", "batch": 4, **PAPER}
# The cheapest sketch, where a transform of every gradient would take most of a minute.
CHEAP = {"rank": 2, "sketch": "shift", "sketch_size": 5000, **PAPER}
SHORT = {"rank": 8, "sketch_size": 4000}
FEW = {"rank": 4, "sketch_size": 4000}
USUAL = {"batch": 32, "batches": 2}  # the peak is the same with four
CALIBRATED = {"batch": 64, "batches": 4}
CASES = {
    "mlp 1M": ("mlp", 1_000_000, LANCZOS),
    "conv 1M": ("conv", 1_000_000, LANCZOS),
    "transformer 1M": ("transformer", 1_000_000, LANCZOS),
    "mlp 1M, one pass": ("mlp", 1_000_000, STREAM),
    "conv 1M, one pass": ("conv", 1_000_000, STREAM),
    "transformer 4M, one pass": ("transformer", 4_000_000, STREAM),
    "transformer 4M, one pass, batches of 16": ("transformer", 4_000_000, {**STREAM, "batch": 16}),
    "one pass, batches of 32": ("mlp", 1_000_000, {**STREAM, "batch": 32}),
    "one pass, all labels": ("mlp", 1_000_000, {**STREAM, "labels_per_point": "all"}),
    "one pass, scaled": ("mlp", 4_000_000, {**CHEAP, "solver": "stream", "scale": "diagonal"}),
    "the default": ("mlp", 1_000_000, {"rank": 4, "budget": "3p", "batch": 4}),
    "the default, conv": ("conv", 1_000_000, {"rank": 4, "budget": "3p", "batch": 4}),
    "the default, its own rank": ("mlp", 5_000_000, {"batch": 64, "batches": 4}),
    "mlp 5M, batches of 8": ("mlp", 5_000_000, {**SHORT, "batch": 8}),
    "mlp 5M, batches of 64": ("mlp", 5_000_000, {**SHORT, "batch": 64}),
    "a table of words and 64 tokens, batches of 8": ("words", 5_000_000, {**SHORT, "batch": 8}),
    "a table of words and 64 tokens, batches of 32": ("words", 5_000_000, {**SHORT, "batch": 32}),
    "wide kernels, batches of 8": ("wide_conv", 2_000_000, {**SHORT, "batch": 8}),
    "wide kernels, batches of 64": ("wide_conv", 2_000_000, {**SHORT, "batch": 64}),
    "LocalEnsemble": ("mlp", 4_000_000, {"method": "LocalEnsemble", "rank": 3}),
    "LocalEnsemble, Hessian": ("mlp", 4_000_000, {"method": "LocalEnsemble", "rank": 3, "curvature": "hessian"}),
    "LowRankLaplace": ("conv", 4_000_000, {"method": "LowRankLaplace", "rank": 2, "steps": 5}),
    "SCOD": ("mlp", 4_000_000, {"method": "SCOD", "rank": 3}),
    "SCOD, batches of 32": ("mlp", 1_000_000, {"method": "SCOD", "rank": 3, "batch": 32}),
    "DiagonalLaplace, batches of 32": ("mlp", 2_000_000, {"method": "DiagonalLaplace", "batch": 32}),
    "SLU, batches of 32": ("mlp", 1_000_000, {**LANCZOS, "batch": 32}),
    "SWAG": ("mlp", 4_000_000, {"method": "SWAG", "rank": 3, "samples": 2}),
    "conv 20M": ("conv", 20_000_000, {**CHEAP, "solver": "lanczos"}),
    "transformer 20M": ("transformer", 20_000_000, {**CHEAP, "solver": "lanczos"}),
    "transformer 20M, one pass": ("transformer", 20_000_000, {**CHEAP, "solver": "stream"}),
    # Of sketches in blocks short pieces wait to be joined.
    "srft, one pass": ("conv", 1_000_000, {**FEW, **PAPER, "sketch": "srft", "solver": "stream", "batch": 8}),
    "block_srft, Lanczos": ("mlp", 1_000_000, {**FEW, **PAPER, "sketch": "block_srft", "solver": "lanczos"}),
    "LSTM": ("lstm", 1_000_000, {**SHORT, "batch": 16}),
    "depthwise convolutions": ("mobile", 1_000_000, USUAL),
    "two tables of a recommender": ("recommender", 5_000_000, USUAL),
    "decoder": ("decoder", 4_000_000, USUAL),
    "U-Net with a head": ("unet", 2_000_000, USUAL),
    "LSTM, batches of 4": ("lstm", 2_000_000, {"rank": 4, "sketch_size": 4000, "batch": 4}),
    "depthwise convolutions, batches of 8": ("mobile", 1_000_000, {**SHORT, "batch": 8}),
    "decoder, batches of 8": ("decoder", 4_000_000, {**SHORT, "batch": 8}),
    "outputs at 16 tokens": ("tagger", 1_000_000, USUAL),
    "outputs at 16 tokens, batches of 8": ("tagger", 4_000_000, {**SHORT, "batch": 8}),
    "outputs at 100 tokens": ("long_tagger", 400_000, {**FEW, "batch": 4}),
    "outputs at 256 pixels": ("segmenter", 400_000, {**FEW, "batch": 4}),
    # Planned too small or too large before: an LSTM, whose workspace is reserved and hardly touched, and whose chunks
    # are larger where points are held out, a GRU, depthwise convolutions, tables of words, and outputs at tokens in a
    # calibrated fit.
    "LSTM, usual": ("lstm", 1_000_000, USUAL),
    "LSTM, few parameters": ("lstm", 300_000, USUAL),
    "LSTM, few parameters, calibrated": ("lstm", 300_000, CALIBRATED),
    "GRU": ("gru", 1_000_000, USUAL),
    "depthwise 7×7 convolutions": ("depthwise", 1_000_000, USUAL),
    "depthwise 7×7 convolutions, batches of 8": ("depthwise", 1_000_000, {"batch": 8, "batches": 5}),
    "table of words": ("bag", 2_000_000, USUAL),
    "table of words, batches of 128": ("bag", 2_000_000, {"batch": 128, "batches": 2}),
    "bags by the general fallback": ("summed_bag", 1_000_000, {"batch": 8, "batches": 5}),
    "bags by the general fallback, calibrated": ("summed_bag", 300_000, CALIBRATED),
    "outputs at 16 tokens, calibrated": ("tagger", 1_000_000, CALIBRATED),
    # Chosen before any measurement of them.
    "vision transformer with positions": ("vision", 1_000_000, USUAL),
    "vision transformer with positions, batches of 8": ("vision", 1_000_000, {"batch": 8, "batches": 5}),
    "U-Net with transposed convolutions": ("raised", 1_000_000, USUAL),
    "wide and deep, calibrated": ("wide_and_deep", 1_000_000, CALIBRATED),
    "convolutions over words": ("phrases", 2_000_000, USUAL),
    "encoder layer applied four times": ("repeated", 1_000_000, USUAL),
}
"""The eight from "LSTM" on are of networks that were chosen before the plan was mended, and
measured after. Convolutions and the decoder were near at once; LSTM and recommender showed whole gradients and the
check of the weights, counted since."""


def measure(kind, parameters, settings, hold=0):
    """{"fitting": [planned, measured, of it late pages], "querying": the same} in bytes."""
    found = measured("measure_plan.py", kind, parameters, hold, json.dumps(settings))
    assert found["p"] == pytest.approx(parameters, rel=0.15)
    return found


FAST = ("mlp 1M", "the default")
"""Of every run of the tests; each case is a process that imports torch, fits twice and asks twice."""
EACH = [pytest.param(case, marks=[] if case in FAST else [pytest.mark.slow]) for case in CASES]


def near(planned, measured, late):
    """Whether the plan is near the measured peak, of which nobody knows how many of the late pages are in it."""
    apart = max(planned - measured, measured - late - planned, 0)
    return apart <= NEAR * measured + NOISE


@pytest.mark.parametrize("case", EACH)
def test_planned_peaks_are_the_measured_ones(case):
    found = measure(*CASES[case])
    for stage in ("fitting", "querying"):
        planned, measured, late = found[stage]
        shown = f"planned {planned / 1e6:.1f} MB, measured {measured / 1e6:.1f} MB, late pages {late / 1e6:.1f} MB"
        assert near(planned, measured, late), (stage, shown)
        print(f"{case}, {stage}: {shown}")


def test_two_vectors_more_are_seen():
    """Control: two p-vectors that somebody holds are more than the tolerance."""
    found = measure(*CASES["mlp 1M"], hold=2)
    assert not near(*found["fitting"])
    assert near(*found["querying"])
