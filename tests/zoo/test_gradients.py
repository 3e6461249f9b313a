"""Per-example gradients of every architecture are those of plain autograd, one example at a time."""

import torch
from torch import Tensor

from shorthand import all_rows, relative_error
from slu import SLU
from slu.gradients import PerExampleGradients
from zoo.entries import plain_outputs
from zoo.entry import double, generator, some

POINTS = 4


def by_autograd(model, names, batch, vectors: Tensor) -> Tensor:
    """(b, 1, p) uᵀJ of every example alone."""
    parameters = dict(model.named_parameters())
    chosen = [parameters[name] for name in names]
    for parameter in chosen:
        parameter.requires_grad_(True)
    rows = []
    for place in range(POINTS):
        outputs = plain_outputs(model, some(batch, [place]))[0]
        wanted = outputs @ vectors[place, 0].to(outputs.dtype)
        gradients = torch.autograd.grad(wanted, chosen, materialize_grads=True)
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return torch.stack(rows)[:, None]


def test_gradients_are_those_of_plain_autograd(case):
    model, batch = case.entry.build().eval(), some(case.batch, slice(0, POINTS))
    if case.entry.exact:
        model, batch = model.double(), double(batch)
    network = SLU(model, case.entry.likelihood, **case.entry.settings).network
    gradients = PerExampleGradients(network)
    (read,) = network.batches([batch if not isinstance(batch, list) else tuple(batch)])
    with network.evaluating():
        outputs = gradients.forward(read.inputs).outputs
        vectors = torch.randn(POINTS, 1, outputs.shape[1], generator=generator(3), dtype=network.selection.dtype)
        actual = all_rows(gradients, read.inputs, vectors)
    expected = by_autograd(network.model, network.selection.names, batch, vectors)
    assert relative_error(actual, expected.to(actual.dtype)) < (1e-10 if case.entry.exact else 0.03)
    # The control: the gradients of the next example are others, so that the comparison is of something.
    assert relative_error(actual.roll(1, 0), expected.to(actual.dtype)) > 0.1
