"""What the inputs of layers are in one call of a small module, and what they should be."""

import torch
from torch import nn

from slu.gradients import LayerInputs, Network
from slu.parameters import select

POINTS = 6


def seeded(make, *shape):
    """A module and inputs from a fixed seed, in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double().eval(), torch.randn(shape, dtype=torch.float64)


def recorded(model, inputs, watch=None):
    """By layer, of one call on the inputs."""
    net = watch._network if watch is not None else Network(model, select(model))
    watch = LayerInputs(net) if watch is None else watch
    with net.evaluating(), torch.no_grad():
        outputs = net.outputs(inputs, watch=watch)
        watch.finish(inputs, outputs)
    return watch.values


def assert_layers(model, inputs, expected):
    """On the first call, which chooses the layers, and on a later one of other points."""
    net = Network(model, select(model))
    watch = LayerInputs(net)
    values = recorded(model, inputs, watch)
    assert tuple(values) == tuple(expected) == watch.names
    for name, each in expected.items():
        torch.testing.assert_close(values[name], each.detach(), rtol=1e-12, atol=1e-12)
        assert not values[name].requires_grad
    again = recorded(model, inputs[:4], watch)
    assert tuple(again) == tuple(expected)
    for name, each in expected.items():
        torch.testing.assert_close(again[name], each[:4].detach(), rtol=1e-12, atol=1e-12)


class Calls(nn.Module):
    """A module whose forward pass is a function of itself."""

    def __init__(self, call, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        self._call = call

    def forward(self, inputs):
        return self._call(self, inputs)
