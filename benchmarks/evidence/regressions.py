"""Studies of regressions: UCI tables of which two ranges of the features were never shown to the network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.evidence.study import Study, cut
from benchmarks.evidence.training import shuffled
from slu.likelihoods import Regression
from slu_experiments import data
from slu_experiments.data import Memory
from slu_experiments.models import MLP, seeded
from slu_experiments.training import Recipe, train

TABLES = ("uci-power", "uci-protein")
GAP, TAIL = (0.4, 0.6), (0.85, 1.0)
"""Shares of the rows, in the order of the features' first principal component, that are outside."""

_RECIPE = Recipe(learning_rate=3e-3, epochs=40, batch_size=128)


def regression_study(name: str, seed: int, folder: Path, points: int, queries: int) -> Study:
    """A table without the middle and the upper end of its widest direction; targets have mean 0 and deviation 1."""
    del folder
    features, targets = uci_table(name)
    share = ranks((features - features.mean(0)) / features.std(0))
    inside = ~(between(share, GAP) | between(share, TAIL))
    rows = shuffled(inside.nonzero()[:, 0], seed)
    tested, learned = rows.tensor_split([len(rows) // 10])
    mean, spread = features[learned].mean(0), features[learned].std(0)
    features = (features - mean) / spread
    targets = (targets - targets[learned].mean()) / targets[learned].std()

    def network(own: int) -> nn.Module:
        model = seeded(lambda: MLP((features.shape[1], 50, 50, 1), nn.ReLU), own)
        train(model, Memory(features[learned], targets[learned]), _RECIPE, likelihood="regression", seed=own)
        return model

    model = network(seed)
    apart, fitted = learned[:queries], learned[queries : queries + points]
    with torch.no_grad():
        noise = float((model(features[apart]) - targets[apart]).square().mean())
        error = float((model(features[tested]) - targets[tested]).square().mean().sqrt())

    def some(kept: Tensor) -> list[Tensor]:
        return cut(features[kept])

    def drawn(window: tuple[float, float]) -> Tensor:
        return shuffled(between(share, window).nonzero()[:, 0], seed)[:queries]

    return Study(
        name=name,
        seed=seed,
        model=model,
        likelihood=Regression(noise),
        quality={"rmse": error},
        fitted=some(fitted),
        apart=some(apart),
        inside=some(tested[:queries]),
        outside={"gap": some(drawn(GAP)), "tail": some(drawn(TAIL))},
        members=lambda: [network(seed + other) for other in (100, 200)],
    )


def uci_table(name: str) -> tuple[Tensor, Tensor]:
    """All rows, those of the first split's two parts; of rows with the same features the first."""
    parts = [data.stack(data.open_set(f"{name}-0", part)) for part in ("train", "test")]
    features, targets = (torch.cat([part[place] for part in parts]) for place in (0, 1))
    kept = torch.from_numpy(np.sort(np.unique(features.numpy(), axis=0, return_index=True)[1]))
    return features[kept], targets[kept]


def ranks(features: Tensor) -> Tensor:
    """(n,) from 0 to 1: where each row stands along the direction of the largest variance."""
    widest = torch.linalg.svd(features - features.mean(0), full_matrices=False)[2][0]
    along = features @ (widest * widest[widest.abs().argmax()].sign())
    return along.argsort().argsort().double() / (len(features) - 1)


def between(values: Tensor, window: tuple[float, float]) -> Tensor:
    """Which of the values lie in the window, its ends included."""
    return (values >= window[0]) & (values <= window[1])
