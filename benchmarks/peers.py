"""What a user would pay elsewhere, in the same units: laplace-torch's fit and predictive variance, curvlinops' product."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import Pairs, forward_pass, train_pass
from benchmarks.networks import SUBJECTS
from benchmarks.timing import clock_name, ratio, serve

QUERIES = 32
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
    batches, inputs = subject.batches(points), subject.draw(QUERIES)
    theirs = copy.deepcopy(model)  # a network of its own: their hooks stay on it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # imports and hooks use what torch deprecates
        if peer == GGN:
            fit, query = _product(theirs, batches), None
        else:
            fit, query = _laplace(theirs, batches, inputs, LAPLACE[peer])
        result: dict[str, Any] = {"points": points, "clock": clock_name()}
        result["fit"] = asdict(ratio(fit, train_pass(model, batches), rounds=rounds))
        if query is not None:
            result["query"] = asdict(ratio(query, forward_pass(model, inputs), rounds=rounds))
    return result


def _laplace(
    model: nn.Module, batches: Pairs, inputs: Tensor, settings: dict[str, str]
) -> tuple[Callable[[], None], Callable[[], object]]:
    from laplace import Laplace

    whole = TensorDataset(*(torch.cat(each) for each in zip(*batches, strict=True)))
    loader = DataLoader(whole, batch_size=len(batches[0][0]))
    theirs = Laplace(model, "classification", **settings)

    def fit() -> None:
        theirs.fit(loader)

    fit()
    # What its call makes first: the outputs and their (t, t) covariance, by Jacobians of all outputs.
    return fit, lambda: theirs._glm_predictive_distribution(inputs)


def _product(model: nn.Module, batches: Pairs) -> Callable[[], object]:
    from curvlinops import GGNLinearOperator

    values = list(model.parameters())
    loss = nn.CrossEntropyLoss(reduction="sum")
    operator: Any = GGNLinearOperator(model, loss, values, list(batches), check_deterministic=False)
    vector = torch.randn(operator.shape[1])
    return lambda: operator @ vector


MEASURES = {"peer": peer}

if __name__ == "__main__":
    serve(MEASURES)
