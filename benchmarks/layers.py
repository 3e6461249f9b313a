"""All rows of a batch's Jacobians, measured by their lengths alone, in forward passes of the batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.networks import Encoder
from benchmarks.timing import ratio
from slu.gradients import GeneralGradients, Network, PerExampleGradients, Rows, squared_lengths
from slu.parameters import select
from slu_experiments.models import LeNet, ResNet

BATCH, OUTPUTS, TOKENS = 32, 10, 128


def settings() -> dict[str, tuple[nn.Module, Tensor]]:
    """Networks with random weights, and a batch for each."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        wide = nn.Sequential(nn.Linear(784, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, OUTPUTS))
        return {
            "LeNet": (LeNet(), torch.randn(BATCH, 1, 28, 28)),
            "ResNet": (ResNet(), torch.randn(BATCH, 3, 32, 32)),
            "MLP 784-600-600-10": (wide, torch.randn(BATCH, 784)),
            f"encoder, {TOKENS} tokens of 64": (Encoder(64, 2, words=100), torch.randint(100, (BATCH, TOKENS))),
        }


def lengths(rows: Rows) -> Tensor:
    """The lightest meter there is."""
    total = torch.zeros(rows.shape)
    for _, values in rows.pieces:
        total += squared_lengths(values)
    return total


def backwards(model: nn.Module, inputs: Tensor) -> Callable[[], None]:
    """The floor: one plain backward pass of the whole batch for each output, which tells no samples apart."""
    parameters = list(model.parameters())

    def run() -> None:
        outputs = model(inputs)
        for place in range(OUTPUTS):
            torch.autograd.grad(outputs[:, place].sum(), parameters, retain_graph=True)

    return run


def main() -> None:
    title = f"Rows: t = {OUTPUTS}, batch {BATCH}, in forward passes; median and middle half of ratios in one run"
    table = Table(title=title)
    for heading in ("network", "layer by layer", "general way", "t plain backward passes"):
        table.add_column(heading)
    unit = torch.eye(OUTPUTS).expand(BATCH, OUTPUTS, OUTPUTS)
    for name, (model, inputs) in settings().items():
        network = Network(model, select(model))
        found = []
        with network.evaluating():

            def forward(model: nn.Module = model, inputs: Tensor = inputs) -> None:
                with torch.no_grad():
                    model(inputs)

            for kind in (PerExampleGradients, GeneralGradients):
                gradients = kind(network)
                found.append(
                    ratio(
                        lambda gradients=gradients, inputs=inputs: gradients.measure(inputs, unit, lengths),
                        forward,
                        rounds=7,
                    )
                )
            found.append(ratio(backwards(model, inputs), forward, rounds=7))
        table.add_row(f"{name}, p = {network.selection.count:,}", *map(str, found))
    Console(width=120).print(table)
