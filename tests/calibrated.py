"""A small problem with enough points to hold some out, and which these are from the definition."""

import torch
from torch import nn

from shorthand import paper_slu
from slu.data.fingerprint import example_keys, uniforms

COMBINED = "combined"
POINTS = 240


def problem(points=POINTS, outputs=3, seed=0, dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)).to(dtype)
        return model, torch.randn(points, 4, dtype=torch.float64).to(dtype)


def slu(model, likelihood="classification", **settings):
    return paper_slu(model, likelihood, **{"rank": 5, "sketch": "identity", **settings})


def held(inputs, seed=0, share=0.1, most=1000):
    """Which points are held out, from the definition."""
    draws = uniforms(example_keys(inputs, len(inputs)), 1, seed, "calibration")[:, 0]
    return (draws < share) & (draws < draws.sort().values[min(most, len(draws) - 1)])


class Unsized:
    """A loader that does not know how many points it has."""

    def __init__(self, inputs, size, fail=None):
        self.inputs, self.size, self.fail = inputs, size, fail

    def __iter__(self):
        for place, batch in enumerate(self.inputs.split(self.size)):
            if place == self.fail:
                raise KeyboardInterrupt
            yield batch


SOLVERS = {"stream": {"solver": "stream"}, "lanczos": {"solver": "lanczos", "precondition": 5}}
