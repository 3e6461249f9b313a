"""Distances of layers' inputs from the data by NumPy in float64: the inputs by hand, layer by layer, and the formulas.

Nothing here uses the code under test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

RIDGE, FLOOR, SHORT = 1e-4, 1e-2, 1e-30
TEMPERATURE = 0.5

Layers = Mapping[str, np.ndarray]


@torch.no_grad()
def layer_inputs(kind: str, model: nn.Module, inputs: Tensor) -> dict[str, np.ndarray]:
    """(n, d) by layer of the networks of `oracles.network` and of `calibrated.problem`, averaged over positions."""
    training, x = model.training, inputs
    model.eval()
    if kind == "mlp":
        layers = {"0": x, "2": (x @ model[0].weight.T + model[0].bias).tanh()}
    elif kind == "conv":
        maps = functional.conv2d(x, model[0].weight, model[0].bias)
        norm = model[1]
        shape = (1, -1, 1, 1)
        maps = (maps - norm.running_mean.view(shape)) / (norm.running_var.view(shape) + norm.eps).sqrt()
        maps = (maps * norm.weight.view(shape) + norm.bias.view(shape)).clamp(min=0)
        layers = {"0": x.mean((2, 3)), "4": maps.reshape(len(x), -1)}
    elif kind == "encoder":
        block = model.encoder.layers[0]
        # Attention takes one tensor three times over; the weight inside of it that is applied last is no call.
        first = block.norm1(x + block.self_attn(x, x, x, need_weights=False)[0])
        hidden = (first @ block.linear1.weight.T + block.linear1.bias).relu()
        second = block.norm2(first + hidden @ block.linear2.weight.T + block.linear2.bias)
        named = {"self_attn": x, "linear1": first, "linear2": hidden}
        layers = {f"encoder.layers.0.{name}": value.mean(1) for name, value in named.items()}
        layers["head"] = second.mean(1)
    elif kind == "tied":
        once = (x @ model.into.weight.T + model.into.bias).tanh()
        twice = (once @ model.into.weight.T + model.into.bias).tanh()
        thrice = (twice @ model.into.weight.T + model.again.bias).tanh()
        layers = {"into": (x + once) / 2, "again": twice, "out": thrice}
    else:
        raise ValueError(kind)
    model.train(training)
    return {name: value.double().numpy() for name, value in layers.items()}


def folding(size: int, width: int, name: str, seed: int = 0) -> np.ndarray:
    """(w, d): one ±1 per column, as many in each row as go; the identity where nothing is folded."""
    if size <= width:
        return np.eye(size)
    words = hashlib.blake2b(f"{seed}\x1ffolded layer\x1f{name}".encode(), digest_size=8).digest()
    draw = torch.Generator().manual_seed(int.from_bytes(words, "big") >> 1)
    order = torch.randperm(size, generator=draw).numpy()
    signs = 1 - 2 * torch.randint(2, (size,), generator=draw).numpy()
    matrix = np.zeros((width, size))
    matrix[order % width, np.arange(size)] = signs
    return matrix


def folded(layers: Layers, width: int = 64, seed: int = 0) -> list[np.ndarray]:
    """The folded inputs of every layer, and then their directions."""
    straight = [value @ folding(value.shape[1], width, name, seed).T for name, value in layers.items()]
    return [*straight, *(each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), SHORT) for each in straight)]


def squared_distances(data: Layers, points: Layers, width: int = 64, seed: int = 0) -> np.ndarray:
    """(n, 2 L): (a - μ)ᵀ (C + ridge)⁻¹ (a - μ) for every layer, and then for its directions.

    The ridge is a ten-thousandth of the variance of each number; a number that hardly varies counts as if its
    deviation were a hundredth of the layer's root mean square.
    """
    found = []
    for known, fresh in zip(folded(data, width, seed), folded(points, width, seed), strict=True):
        mean, covariance = known.mean(0), np.atleast_2d(np.cov(known, rowvar=False))
        deviation = np.sqrt(covariance.diagonal())
        deviation = np.maximum(deviation, FLOOR * np.sqrt((deviation**2).mean()))
        apart = fresh - mean
        if not deviation.max():
            found.append(np.zeros(len(fresh)))
            continue
        inverse = np.linalg.inv(covariance + RIDGE * np.diag(deviation**2))
        found.append(np.einsum("ni,ij,nj->n", apart, inverse, apart))
    return np.stack(found, 1)


def soft_maximum(values: np.ndarray, axis: int, temperature: float = TEMPERATURE) -> np.ndarray:
    """T log Σ exp(·/T), by the plain formula."""
    return temperature * np.log(np.exp(values / temperature).sum(axis))


def farthest(data: Layers, known: Layers, fresh: Layers, **how) -> dict[str, np.ndarray]:
    """The readings "distance" and "angle" (n,) of fresh points: of standardized logarithms the soft maximum."""
    old, new = (np.log(squared_distances(data, points, **how)) for points in (known, fresh))
    heights = (new - old.mean(0)) / old.std(0, ddof=1)
    halves = np.split(heights, 2, axis=1)
    return {name: soft_maximum(half, 1) for name, half in zip(("distance", "angle"), halves, strict=True)}
