"""Networks and inputs for stored files, made of integers and powers of two: the same bits everywhere."""

import torch
from torch import nn


def formula(count, shift=0):
    """(count,) numbers in (-1, 1), multiples of 1/128."""
    place = torch.arange(count, dtype=torch.int64)
    return ((53 * place * place + 31 * place + shift) % 251 - 125).double() / 128


def network(name):
    """The network that the files belong to, its every parameter and buffer set by `formula`."""
    model = {
        "mlp": lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)),
        "wider": lambda: nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 3)),
        "conv": lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)),
    }[name]()
    with torch.no_grad():
        for place, (key, value) in enumerate([*model.named_parameters(), *model.named_buffers()]):
            if not value.is_floating_point():
                value.fill_(7)
            elif key.endswith("running_var"):
                value.copy_(1 + formula(value.numel(), place).abs().reshape(value.shape))
            else:
                value.copy_(formula(value.numel(), 17 * place).reshape(value.shape))
    return model.eval()


def inputs(name, count, shift=5, width=2.0):
    shape = (count, 1, 3, 3) if name == "conv" else (count, 4)
    return (width * formula(torch.Size(shape).numel(), shift)).float().reshape(shape)


def queries(name):
    """Five like the data, three far away."""
    return torch.cat([inputs(name, 5, 77), inputs(name, 3, 140, 6.0)])
