"""Every method on a network of half precision, against float32 on the same, rounded weights.

Both are shown the same half-precision inputs, which the network of float32 widens itself, so that random choices
keyed by the content of a point (labels, hold-out) are the same; SLU is fitted with its defaults and calibrated.

The bound: u is the unit roundoff of the type. Three layers round their results on the way forward and back, and an
energy is a square: 2 · 3 · 2 = 12 relative roundings of the largest score in a row; measured are 4.4 u and less.
Scores of outputs alone have the 3 of the way forward; measured are 1.2 u and less. Where they are variances of
outputs, which are differences of rounded numbers, their roots have the error of the outputs. RelativeMahalanobis is a
difference of two squares, each with the 12 of an energy; measured are 14.3 u and less.
"""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn

import slu

GRADIENTS, OUTPUTS = 12, 3
"""Roundings in a row, as above."""
POINTS, BATCH = 300, 50
DTYPES = [torch.bfloat16, torch.float16]
RANKS = {"LocalEnsemble": {"rank": 3}, "LowRankLaplace": {"rank": 3}, "SCOD": {"rank": 3}}
SETTINGS: dict[str, dict] = {
    "SLU": {},
    "SLU by Lanczos": {"solver": "lanczos", "rank": 10},
    "DiagonalLaplace": {},
    "SWAG": {"rank": 3, "samples": 5},
    "DeepEnsemble": {},
    **RANKS,
    **{name: {} for name in ("Mahalanobis", "RelativeMahalanobis", "KNN", "ViM", "GradNorm")},
    **{name: {} for name in ("MaxLogit", "MaxProbability", "Entropy", "Energy")},
}
OUTPUTS_ONLY = ("SWAG", "DeepEnsemble", "KNN", "ViM", "GradNorm", "MaxLogit", "MaxProbability", "Entropy", "Energy")
VARIANCES = ("variance", "mutual-information")
"""Of several networks' outputs; the information is to first order half their variance under the probabilities."""


def perceptron(seed: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3))


def widened(model, inputs):
    return model(inputs.float())


def made(name, models, **more):
    """A method of that name; an ensemble of both models, the others on the first."""
    kind = getattr(slu, name.split()[0])
    if name == "DeepEnsemble":
        return kind(models, "classification", **more)
    likelihood = ["classification"] if "likelihood" in inspect.signature(kind).parameters else []
    return kind(models[0], *likelihood, **SETTINGS[name], **more)


def scores(name, models, dtype, queries, **more):
    """The scores of the queries by reading, after a fit on points of that type."""
    draw = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(POINTS, 6, generator=draw).to(dtype), torch.arange(POINTS) % 3
    data = list(zip(inputs.split(BATCH), targets.split(BATCH), strict=True))
    score = made(name, models, **more).fit(data)
    if name.startswith("SLU"):
        assert score.calibration is not None
    return {reading: score(queries, reading=reading) for reading in score.readings}


def error(name, reading, ours, reference, outputs):
    """The largest difference, as a share of the largest score, or for variances of the largest output."""
    ours, reference = ours.double(), reference.double()
    if name in OUTPUTS_ONLY and reading in VARIANCES:
        return float((ours.sqrt() - reference.sqrt()).abs().max() / outputs.abs().max())
    return float((ours - reference).abs().max() / reference.abs().max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SETTINGS)
def test_half_precision_is_float32_to_a_few_roundings(name, dtype):
    queries = 1.5 * torch.randn(40, 6, generator=torch.Generator().manual_seed(2)).to(dtype)
    half = [perceptron(seed).to(dtype) for seed in (0, 1)]
    single = [copy.deepcopy(model).float() for model in half]
    other = [perceptron(seed) for seed in (2, 3)]
    outputs = widened(single[0], queries).detach()
    ours = scores(name, half, dtype, queries)
    reference = scores(name, single, dtype, queries, forward=widened)
    control = scores(name, other, dtype, queries, forward=widened)
    bound = (OUTPUTS if name in OUTPUTS_ONLY else GRADIENTS) * torch.finfo(dtype).eps / 2
    bound *= 2 if name == "RelativeMahalanobis" else 1
    assert ours.keys() == reference.keys() == control.keys()
    for reading, values in ours.items():
        assert values.dtype == reference[reading].dtype and values.dtype.itemsize >= 4
        assert error(name, reading, values, reference[reading], outputs) < bound, reading
        assert error(name, reading, control[reading], reference[reading], outputs) > bound, f"control: {reading}"


def test_every_public_method_is_here():
    """Control: a method that is exported but not compared would pass unnoticed."""
    classes = {name for name in slu.__all__ if hasattr(getattr(slu, name), "fit")} - {"Method"}
    assert {name.split()[0] for name in SETTINGS} == classes
