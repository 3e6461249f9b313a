"""Products with the curvature, Lanczos steps and queries, each in units of the plain work beneath it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.timing import ratio
from slu import SLU
from slu.curvature import Curvature
from slu.gradients import Network
from slu.krylov import low_memory, start_vector
from slu.likelihoods import resolve
from slu.parameters import select
from slu.sketches import DEFAULT_SKETCH, SketchSpec, build
from slu_experiments.models import LeNet, ResNet

POINTS, BATCH, QUERIES, RANK, SIZE = 1024, 128, 32, 50, 1000


def settings() -> dict[str, tuple[nn.Module, Tensor]]:
    """The two networks of the paper's middle settings, with random weights and inputs of their shape."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return {
            "LeNet": (LeNet().eval(), torch.randn(POINTS, 1, 28, 28)),
            "ResNet": (ResNet().eval(), torch.randn(POINTS, 3, 32, 32)),
        }


def forward_backward(model: nn.Module, batches: list[Tensor]) -> Callable[[], None]:
    """The unit of fitting: a gradient of the summed loss over the same batches."""
    parameters = list(model.parameters())

    def run() -> None:
        for inputs in batches:
            outputs = model(inputs)
            targets = torch.zeros(len(inputs), dtype=torch.long)
            torch.autograd.grad(nn.functional.cross_entropy(outputs, targets, reduction="sum"), parameters)

    return run


def lanczos_step(operator: Curvature) -> Callable[[], None]:
    """One step in the middle of a run, its vector sketched."""
    p = operator.shape[0]
    sketch = build(SketchSpec(DEFAULT_SKETCH, p, SIZE))
    row = torch.zeros(SIZE)
    steps = low_memory(operator, start_vector(operator, 0), 10**6)

    def run() -> None:
        sketch.accumulate(0, next(steps).vector, row.zero_())

    return run


def main() -> None:
    table = Table(title=f"Core: n = {POINTS}, batches of {BATCH}; median and middle half of ratios in one run")
    for heading in ("what", "in units of", "network", "ratio", "aim"):
        table.add_column(heading)
    for name, (model, inputs) in settings().items():
        batches = list(inputs.split(BATCH))
        selection = select(model)
        operator = Curvature(Network(model, selection), resolve("classification"), batches)
        vector = start_vector(operator, 1)

        def product(operator: Curvature = operator, vector: Tensor = vector) -> Tensor:
            return operator @ vector

        label = f"{name}, p = {selection.count:,}"
        cost = ratio(product, forward_backward(model, batches))
        table.add_row("GGN product", "forward + backward, same data", label, str(cost), "2.0")
        cost = ratio(lanczos_step(operator), product)
        table.add_row("sketched Lanczos step", "GGN product", label, str(cost), "1.10")
        method = SLU(model, "classification", rank=RANK, sketch_size=SIZE, scale=None, ridge=0.0)
        score = method.fit(batches[:2], calibration=False)
        some = inputs[:QUERIES]
        with torch.no_grad():
            cost = ratio(
                lambda score=score, some=some: score(some, reading="variance"),
                lambda model=model, some=some: model(some),
                rounds=7,
            )
        table.add_row(f"query, t = 10, batch {QUERIES}", "forward pass of its batch", label, str(cost), "none yet")
    Console(width=120).print(table)
