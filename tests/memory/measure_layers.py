"""Run by test_layers_peak.py in a fresh process: the peak of measuring every row of a batch, as JSON."""

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from measure_peak import reset_peak, status

from slu.gradients import GeneralGradients, Network, PerExampleGradients, squared_lengths
from slu.parameters import select

POINTS, OUTPUTS = 8, 10


def mlp(width: int) -> nn.Sequential:
    layers = [nn.Linear(100, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, OUTPUTS))


def lengths(rows) -> Tensor:
    total = torch.zeros(rows.shape)
    for _, values in rows.pieces:
        total += squared_lengths(values)
        del values
    return total


def held(rows) -> Tensor:
    """Keeps all pieces of a row until the next row: what must not happen."""
    kept = [values.clone() for _, values in rows.pieces]
    return sum(map(squared_lengths, kept), torch.zeros(rows.shape))


WAYS = {
    "layers": (PerExampleGradients, lengths),
    "held": (PerExampleGradients, held),
    "general": (GeneralGradients, lengths),
}


def run(model: nn.Module, way: str) -> Tensor:
    kind, meter = WAYS[way]
    network = Network(model, select(model))
    gradients = kind(network)
    vectors = torch.randn(POINTS, 1, OUTPUTS)
    with network.evaluating():
        return gradients.measure(torch.randn(POINTS, 100), vectors, meter)


def main(way: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    run(mlp(300), way)
    model = mlp(2600)
    before = reset_peak()
    found = run(model, way)
    print(json.dumps({"p": select(model).count, "largest": 2600**2, "peak": (status("VmHWM") - before) / 4}))
    assert found.shape == (POINTS, 1)


if __name__ == "__main__":
    main(sys.argv[1])
