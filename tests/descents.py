"""Plain SGD, run by hand with torch's own optimizer, for what continues a training."""

import copy

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from oracles import losses, network, targets_for
from shorthand import split
from slu.seeds import stream

SIZES = [5, 4, 3]


class Noisy(nn.Module):
    """BatchNorm and dropout: of the two only the first may be in training mode while statistics are refitted."""

    def __init__(self):
        super().__init__()
        self.into, self.norm, self.drop = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.out = nn.Linear(6, 3)

    def forward(self, inputs):
        return self.out(self.drop(self.norm(self.into(inputs)).tanh()))


def problem(kind="mlp", likelihood="classification", sizes=SIZES):
    if kind == "noisy":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model, inputs = Noisy().double(), torch.randn(12, 4, dtype=torch.float64)
    else:
        model, inputs = network(kind)
    targets = targets_for(likelihood)
    return model, inputs, split(inputs, targets, sizes=sizes)


def by_hand(model, data, likelihood, settings, factor=lambda step: 1.0, names=None):
    """Iterates (n, p) of SGD with torch's own optimizer, and the model it leaves."""
    model = copy.deepcopy(model).train()
    chosen = [value for name, value in model.named_parameters() if names is None or name in names]
    rate = settings.get("learning_rate", 1e-3)
    optimizer = torch.optim.SGD(
        chosen, lr=rate, momentum=settings.get("momentum", 0.9), weight_decay=settings.get("weight_decay", 0.0)
    )
    found, step = [], 0
    with torch.random.fork_rng():
        torch.set_rng_state(stream(settings.get("seed", 0), "swag training").get_state())
        while True:
            for inputs, targets in data:
                optimizer.param_groups[0]["lr"] = rate * factor(step)
                optimizer.zero_grad()
                losses(likelihood, model(inputs), targets).mean().backward()
                optimizer.step()
                step += 1
                every = settings.get("collect_every")
                if every is not None and step % every == 0:
                    found.append(parameters_to_vector(chosen).detach().clone())
                if len(found) == settings["collections"]:
                    return torch.stack(found), model.requires_grad_(False)
            if settings.get("collect_every") is None:
                found.append(parameters_to_vector(chosen).detach().clone())
            if len(found) == settings["collections"]:
                return torch.stack(found), model.requires_grad_(False)
