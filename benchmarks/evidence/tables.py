"""Studies of tables: classes from a few numbers per row, without two ranges of the features and without a class.

| study | rows, features | classes | activation |
|---|---|---|---|
| table-cancer-relu | scikit-learn's breast cancer: 569, 30 | 2 | ReLU |
| table-digits-gelu | scikit-learn's digits as a table: 1,797, 64 | 10 | GELU |
| table-wine-tanh | UCI's red wine: 1,359 different ones, 11 | 4, by quality: up to 4, 5, 6, 7 or more | Tanh |
| table-kin8nm-relu | UCI's kin8nm: 8,192, 8 | 4, the quarters of its target | ReLU |

Of tables with three classes or more one class is never shown, which one depends on the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.evidence.regressions import GAP, TAIL, between, ranks, uci_table
from benchmarks.evidence.study import Study, cut
from benchmarks.evidence.training import shuffled
from slu_experiments.data import Memory
from slu_experiments.models import MLP, seeded
from slu_experiments.training import Recipe, accuracy, train

HIDDEN = 64
TESTED = 0.3
"""Share of the rows that are tested on, at most as many as there are queries; and of the rest a fifth is apart."""

Table = tuple[Tensor, Tensor]


def _cancer() -> Table:
    from sklearn.datasets import load_breast_cancer

    return _tensors(*load_breast_cancer(return_X_y=True))


def _digits() -> Table:
    from sklearn.datasets import load_digits

    return _tensors(*load_digits(return_X_y=True))


def _wine() -> Table:
    features, quality = uci_table("uci-wine")
    return features, (quality[:, 0].round().clamp(4, 7) - 4).long()


def _kin8nm() -> Table:
    features, target = uci_table("uci-kin8nm")
    return features, (target[:, 0].argsort().argsort() * 4) // len(target)


def _tensors(features: np.ndarray, classes: np.ndarray) -> Table:
    return torch.from_numpy(features).float(), torch.from_numpy(classes).long()


@dataclass(frozen=True)
class Kind:
    """A table and the network that learns it.

    Attributes:
        load: All rows and their classes.
        activation: Of the two hidden layers.
        epochs: Of Adam at 0.003, with batches of 64.
    """

    load: Callable[[], Table]
    activation: Callable[[], nn.Module]
    epochs: int


TABLES: dict[str, Kind] = {
    "table-cancer-relu": Kind(_cancer, nn.ReLU, 60),
    "table-digits-gelu": Kind(_digits, nn.GELU, 40),
    "table-wine-tanh": Kind(_wine, nn.Tanh, 60),
    "table-kin8nm-relu": Kind(_kin8nm, nn.ReLU, 30),
}


def table_study(name: str, seed: int, folder: Path, points: int, queries: int) -> Study:
    """A network of two hidden layers of 64 with its table, its features standardized; trained in seconds."""
    del folder
    kind = TABLES[name]
    features, classes = kind.load()
    outside = {}
    if int(classes.max()) >= 2:
        held_out = classes == seed % (int(classes.max()) + 1)
        outside["held-out class"] = features[held_out]
        features, classes = features[~held_out], classes[~held_out]
        classes = torch.unique(classes, return_inverse=True)[1]
    share = ranks((features - features.mean(0)) / _spread(features))
    ranges = {"gap": between(share, GAP), "tail": between(share, TAIL)}
    outside |= {each: features[rows] for each, rows in ranges.items()}
    rows = shuffled((~(ranges["gap"] | ranges["tail"])).nonzero()[:, 0], seed)
    tested, learned = rows.tensor_split([min(queries, round(TESTED * len(rows)))])
    apart, fitted = learned.tensor_split([min(queries, len(learned) // 5)])
    mean, spread = features[learned].mean(0), _spread(features[learned])
    inputs = (features - mean) / spread

    def network(own: int) -> nn.Module:
        sizes = (inputs.shape[1], HIDDEN, HIDDEN, int(classes.max()) + 1)
        model = seeded(lambda: MLP(sizes, kind.activation), own)
        recipe = Recipe(learning_rate=3e-3, epochs=kind.epochs, batch_size=64)
        train(model, Memory(inputs[learned], classes[learned]), recipe, seed=own)
        return model

    model = network(seed)
    return Study(
        name=name,
        seed=seed,
        model=model,
        likelihood="classification",
        quality={"accuracy": accuracy(model, Memory(inputs[tested], classes[tested]))},
        fitted=cut(inputs[fitted[:points]]),
        labels=cut(classes[fitted[:points]]),
        apart=cut(inputs[apart]),
        inside=cut(inputs[tested]),
        outside={each: cut((shuffled(values, seed)[:queries] - mean) / spread) for each, values in outside.items()},
        members=lambda: [network(seed + other) for other in (100, 200)],
    )


def _spread(features: Tensor) -> Tensor:
    """Deviation of each feature, 1 for those that do not vary."""
    spread = features.std(0)
    return torch.where(spread > 0, spread, torch.ones_like(spread))
