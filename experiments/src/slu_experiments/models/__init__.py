"""The paper's networks, with the same numbers of parameters, and a small one for scikit-learn's digits."""

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from slu.errors import unknown
from slu.seeds import fenced
from slu_experiments.models.resnet import ResNet
from slu_experiments.models.small import MLP, LeNet
from slu_experiments.models.swin import Swin
from slu_experiments.models.van import VisualAttentionNet

T = TypeVar("T")

# From the number of outputs to a network; the default is the paper's.
MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": lambda outputs=10: MLP((784, 20, outputs)),
    "lenet": lambda outputs=10: LeNet(outputs=outputs),
    "resnet": lambda outputs=10: ResNet(outputs=outputs),
    "van": lambda outputs=37: VisualAttentionNet(outputs=outputs),
    "swin": lambda outputs=990: Swin(outputs=outputs),
    "digits-mlp": lambda outputs=8: MLP((64, 128, 64, outputs)),
}


def build(name: str, outputs: int | None = None) -> nn.Module:
    """A network of the table with new weights, drawn from torch's random state (see `seeded`).

    >>> sum(parameter.numel() for parameter in build("mlp").parameters())
    15910
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name]() if outputs is None else MODELS[name](outputs)


def seeded(build: Callable[[], T], seed: int) -> T:
    """Build a model with initial weights that depend on the seed alone.

    >>> import torch
    >>> one, two = (seeded(lambda: torch.nn.Linear(2, 1), seed=0) for _ in range(2))
    >>> torch.equal(one.weight, two.weight)
    True
    """
    with fenced(seed, "initial weights"):
        return build()


__all__ = ["MLP", "MODELS", "LeNet", "ResNet", "Swin", "VisualAttentionNet", "build", "seeded"]
