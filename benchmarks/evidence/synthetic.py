"""Synthetic studies: three classes of eight normal inputs, and inputs ever farther away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.evidence.study import Study, cut
from slu.seeds import stream
from slu_experiments.data import Memory
from slu_experiments.models import MLP, seeded
from slu_experiments.training import Recipe, accuracy, train

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"far-relu": nn.ReLU, "far-gelu": nn.GELU, "far-tanh": nn.Tanh}
INPUTS, HIDDEN, LEARNED, TESTED = 8, 64, 2000, 500
NOISE = 0.3
"""Deviation of what is added to an input before its sign decides on the class."""

FACTORS = (2.5, 5)
SHIFT = 2.0
"""Of the mean of every input, in deviations."""

_RECIPE = Recipe(learning_rate=3e-3, epochs=40, batch_size=200)


def far_study(name: str, seed: int, folder: Path, points: int, queries: int) -> Study:
    """A network of two hidden layers of 64 with the activation of its name; a fifth of what it learned is apart."""
    del folder
    inputs, classes = draw(LEARNED + TESTED, seed)
    learned, labels = inputs[:LEARNED], classes[:LEARNED]

    def network(own: int) -> nn.Module:
        model = seeded(lambda: MLP((INPUTS, HIDDEN, HIDDEN, 3), ACTIVATIONS[name]), own)
        train(model, Memory(learned, labels), _RECIPE, seed=own)
        return model

    model = network(seed)
    apart = min(queries, LEARNED // 5)
    inside = inputs[LEARNED:][:queries]
    return Study(
        name=name,
        seed=seed,
        model=model,
        likelihood="classification",
        quality={"accuracy": accuracy(model, Memory(inputs[LEARNED:], classes[LEARNED:]))},
        fitted=cut(learned[apart:][:points]),
        labels=cut(labels[apart:][:points]),
        apart=cut(learned[:apart]),
        inside=cut(inside),
        # "times 20" comes with the far shifts of every study.
        outside={f"times {factor:g}": cut(factor * inside) for factor in FACTORS}
        | {"shifted mean": cut(inside + SHIFT)},
        members=lambda: [network(seed + other) for other in (100, 200)],
    )


def draw(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Normal inputs (count, 8), and classes: 0, or 1 or 2, by the signs of the first two after noise is added."""
    generator = stream(seed, "synthetic points")
    inputs = torch.randn(count, INPUTS, generator=generator)
    first, second = (inputs[:, :2] + NOISE * torch.randn(count, 2, generator=generator) > 0).unbind(1)
    return inputs, torch.where(first, 1 + second.long(), 0)
