"""Small networks and scores that tests save, damage and load."""

import torch

from oracles import network
from slu import SLU


def made(kind="mlp", dtype=torch.float64):
    model, inputs = network(kind)
    return model.to(dtype), inputs.to(dtype)


def fitted(model, inputs, likelihood="classification", **settings):
    return SLU(model, likelihood, **{"rank": 4, **settings}).fit(inputs)
