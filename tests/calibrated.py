"""A small problem with enough points to hold some out; which these are, and the combined reading, from the definitions.

Nothing here uses the code under test.
"""

import hashlib

import numpy as np
import torch
from torch import nn

from distant import farthest, layer_inputs, soft_maximum
from slu import SLU, Lanczos, Stream

COMBINED = "combined"
FAR = ("distance", "angle")
POINTS = 240
SOLVERS = {"stream": Stream(), "lanczos": Lanczos(precondition=5)}

_MASK = (1 << 64) - 1


def problem(points=POINTS, outputs=3, seed=0, dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)).to(dtype)
        return model, torch.randn(points, 4, dtype=torch.float64).to(dtype)


def slu(model, likelihood="classification", **settings):
    """SLU as a user gets it, without a sketch."""
    return SLU(model, likelihood, **{"rank": 5, "sketch": "identity", **settings})


def held(inputs, seed=0, share=0.1, most=1000):
    """(n,) which of the points, a float64 matrix, are held out: those with a number below the share, at most so many.

    The number is splitmix64 of a hash of the row's bits, keyed by the seed; written in Python's integers.
    """
    draws = torch.tensor([_number(row, seed) for row in inputs.double().numpy()], dtype=torch.float64)
    return (draws < share) & (draws < draws.sort().values[min(most, len(draws) - 1)])


def _number(row, seed):
    words = hashlib.blake2b(f"{seed}\x1fcalibration".encode(), digest_size=8).digest()
    step = 0x9E3779B97F4A7C15
    bits = np.ascontiguousarray(row).view(np.int32).tolist()
    products = [word * (_mixed(place * step) | 1) & _MASK for place, word in enumerate(bits, 1)]
    key = _mixed(sum(product ^ product >> 32 for product in products))
    drawn = _mixed(_mixed(key + (int.from_bytes(words, "big") >> 1)) + step)
    return ((drawn >> 12) + 0.5) / 2**52


def _mixed(value):
    """The output function of splitmix64."""
    value &= _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def combined(fresh, known):
    """The combined reading (n,) of fresh points by NumPy, from readings of these and of the calibration points.

    ½ log Σ exp 2· of (z(log fisher) + z(log fisher-relative)) / √2, for classes and labels z(log entropy), and
    z(distance) and z(angle), or z(log variance) without these two; z is standardized by mean and deviation of the
    calibration points.

    Args:
        fresh, known: Readings by name; "entropy" is there for classes and labels only, "distance" and "angle" where the
            inputs of layers are known (`with_distances`).
    """

    def z(name, logarithm=True):
        new, old = (np.asarray(each[name], dtype=np.float64) for each in (fresh, known))
        new, old = (np.log(new), np.log(old)) if logarithm else (new, old)
        return (new - old.mean()) / old.std(ddof=1)

    views = [(z("fisher") + z("fisher-relative")) / np.sqrt(2)]
    if "entropy" in known:
        views.append(z("entropy"))
    views += [z(name, logarithm=False) for name in FAR] if "distance" in known else [z("variance")]
    return torch.from_numpy(soft_maximum(np.stack(views), 0))


def with_distances(model, data, known, fresh):
    """Readings with "distance" and "angle" of calibration points and of fresh ones, for the network of `problem`.

    Args:
        model: That network.
        data: The points it was fitted on, without those held out.
        known, fresh: Points, each with its other readings: (points, readings by name).

    Returns:
        The readings of the calibration points and of the fresh points, each with the two added.
    """
    fitted, own, new = (layer_inputs("mlp", model, points) for points in (data, known[0], fresh[0]))
    return {**known[1], **farthest(fitted, own, own)}, {**fresh[1], **farthest(fitted, own, new)}


def former_sum(fresh, known):
    """What "combined" was before: the sum of the two standardized Fisher readings. The control of several tests."""
    logs = [(np.log(np.asarray(fresh[n])), np.log(np.asarray(known[n]))) for n in ("fisher", "fisher-relative")]
    return torch.from_numpy(sum((new - old.mean()) / old.std(ddof=1) for new, old in logs))


class Unsized:
    """A loader that does not know how many points it has."""

    def __init__(self, inputs, size, fail=None):
        self.inputs, self.size, self.fail = inputs, size, fail

    def __iter__(self):
        for place, batch in enumerate(self.inputs.split(self.size)):
            if place == self.fail:
                raise KeyboardInterrupt
            yield batch
