"""What every fitted score does with data: batch by batch, in order, the answer on the data's device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slu.budgets import Cost
from slu.budgets.memory import explain_out_of_memory
from slu.core.readings import find_reading, rows_to_measure
from slu.data import Batch, batch_count, batches, check_finite, is_one_batch
from slu.data.batches import Inputs, map_tensors, tensors
from slu.gradients import Meter, Network, PerExampleGradients
from slu.likelihoods import Likelihood
from slu.progress import Bar


def score_batches(
    network: Network, data: Any, score: Callable[[Batch], Tensor], *, cost: Callable[[], Cost], progress: bool | None
) -> Tensor:
    """The scores of one batch, or of every batch of a loader in its order.

    Args:
        network: Whose evaluation mode the scores are taken in.
        data: Inputs, an (inputs, targets) pair, or a loader of them.
        score: (b,) or (b, t) scores of one batch; its inputs carry no history.
        cost: Asked for and told to a user who runs out of memory.
        progress: Whether to show a bar for a loader; by default in a terminal only.

    Returns:
        On the device the inputs of one batch came on; of a loader on the CPU.
    """
    found: list[Tensor] = []
    one = is_one_batch(data)
    work = explain_out_of_memory("scoring", cost, network.selection.device)
    with work, network.evaluating(), Bar("score", batch_count(data), False if one else progress) as bar:
        for batch in batches(data, network.selection.device):
            # Inputs that require gradients would hang a graph on every score.
            found.append(score(Batch(batch.index, map_tensors(Tensor.detach, batch.inputs), batch.targets)))
            bar.advance()
    device = _device(data) if one else torch.device("cpu")
    return torch.cat(found).to(device)


def outputs_of(network: Network, inputs: Inputs, index: int) -> Tensor:
    """(b, t) outputs of a batch without history, checked."""
    with torch.no_grad():
        outputs = network.outputs(inputs)
    check_outputs(network, inputs, outputs, index)
    return outputs


def check_outputs(network: Network, inputs: Inputs, outputs: Tensor, index: int) -> None:
    """Refuse outputs (b, t) that are not finite, or not each point's own."""
    check_finite(outputs, f"the model's outputs on batch {index}")
    with torch.no_grad():
        network.check_pointwise(inputs, outputs)


@dataclass(frozen=True)
class GradientReader:
    """Reads a quadratic form off the gradients of every input: tr J M Jᵀ for some (p, p) matrix M.

    Attributes:
        network, likelihood: What is differentiated, and what its outputs mean.
        gradients: Where the rows of J come from.
        meter: Measures rows g; of its (m, b, q) numbers the first must be ‖g‖². They are summed
            over the outputs before `value` reads them, so they must be additive.
        value: From m tensors of one shape to gᵀ M g.
    """

    network: Network
    likelihood: Likelihood
    gradients: PerExampleGradients
    meter: Meter
    value: Callable[[Tensor], Tensor]

    def __call__(
        self, data: Any, *, reading: str, per_output: bool, progress: bool | None, cost: Callable[[], Cost]
    ) -> Tensor:
        """(b,), or (b, t) per output.

        Cost: t gradients an input.
        """
        found = find_reading(reading)

        def score(batch: Batch) -> Tensor:
            passed = self.gradients.forward(batch.inputs)
            check_outputs(self.network, batch.inputs, passed.outputs, batch.index)
            with torch.no_grad():
                vectors, scale = rows_to_measure(self.likelihood, passed.outputs, found)
            measured = passed.measure(vectors, self.meter)
            measured = measured if per_output else measured.sum(-1)
            return self.finished(measured, scale if per_output else scale[:, 0], found.relative)

        return score_batches(self.network, data, score, cost=cost, progress=progress)

    def finished(self, measured: Tensor, scale: Tensor, relative: bool) -> Tensor:
        """Scores from the (m, ...) numbers of rows, and the scale (...) that the rows lacked."""
        value = self.value(measured)
        if relative:
            # Where nothing can change at all, no share of it is open.
            return torch.where(measured[0] > 0, value / measured[0], torch.zeros_like(value))
        return value * scale.to(value.dtype).square()


def _device(data: Any) -> torch.device:
    found = tensors(data)
    return found[0].device if found else torch.device("cpu")
