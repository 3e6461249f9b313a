"""What a user would pay elsewhere, in the same units: fits and variances of laplace-torch, products of curvlinops.

laplace-torch runs with its own defaults; its full-network fits and variances form the Jacobians of a batch.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import Pairs, forward_pass, train_pass
from benchmarks.networks import SUBJECTS
from benchmarks.timing import Ratio, clock_name, seconds, serve

QUERIES = 32
BATCH = 64  # of the fit: the Jacobians of 128 inputs of the ResNet are 1.4 GB
LAPLACE: dict[str, dict[str, str]] = {
    "laplace-torch, diagonal": {"subset_of_weights": "all", "hessian_structure": "diag"},
    "laplace-torch, Kronecker": {"subset_of_weights": "all", "hessian_structure": "kron"},
    "laplace-torch, last layer": {"subset_of_weights": "last_layer", "hessian_structure": "kron"},
}
GGN = "curvlinops, GGN product"


def peer(name: str, peer: str, points: int, rounds: int) -> dict[str, Any]:
    """Fit (for curvlinops one product) in training passes, and the variance of a batch in forward passes."""
    subject = SUBJECTS[name]
    model = subject.network()
    whole = [torch.cat(each) for each in zip(*subject.batches(points), strict=True)]
    batches = list(zip(*(each.split(BATCH) for each in whole), strict=True))
    inputs = subject.draw(QUERIES)
    theirs = copy.deepcopy(model)  # a network of its own: their hooks stay on it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # imports and hooks use what torch deprecates
        if peer == GGN:
            fit, query = _product(theirs, batches), None
        else:
            fit, query = _laplace(theirs, batches, inputs, LAPLACE[peer])
        result: dict[str, Any] = {"points": points, "clock": clock_name()}
        unit = train_pass(model, batches)
        unit()
        # By hand, not by `ratio`: a fit that takes a minute needs no repetition within a round.
        result["fit"] = asdict(Ratio.of([seconds(fit) / seconds(unit) for _ in range(rounds)]))
        if query is not None:
            query()
            count, forward = 1 + int(0.02 / seconds(query)), forward_pass(model, inputs)
            result["query"] = asdict(
                Ratio.of([seconds(query, count) / seconds(forward, 10) for _ in range(2 * rounds + 1)])
            )
    return result


def _laplace(
    model: nn.Module, batches: Pairs, inputs: Tensor, settings: dict[str, str]
) -> tuple[Callable[[], None], Callable[[], object]]:
    whole = TensorDataset(*(torch.cat(each) for each in zip(*batches, strict=True)))
    loader = DataLoader(whole, batch_size=len(batches[0][0]))
    theirs: Any = import_module("laplace").Laplace(model, "classification", **settings)

    def fit() -> None:
        theirs.fit(loader)

    fit()
    # What its call makes first: the outputs and their (t, t) covariance, by Jacobians of all outputs.
    return fit, lambda: theirs._glm_predictive_distribution(inputs)


def _product(model: nn.Module, batches: Pairs) -> Callable[[], object]:
    values = list(model.parameters())
    loss = nn.CrossEntropyLoss(reduction="sum")
    kind = import_module("curvlinops").GGNLinearOperator
    operator: Any = kind(model, loss, values, list(batches), check_deterministic=False)
    vector = torch.randn(operator.shape[1])

    def product() -> object:
        return operator @ vector

    product()  # the first one compiles
    return product


MEASURES = {"peer": peer}

if __name__ == "__main__":
    serve(MEASURES)
