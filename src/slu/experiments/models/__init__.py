"""The paper's networks, with its numbers of parameters, and a small one for scikit-learn's digits."""

from collections.abc import Callable

from torch import nn

from slu.errors import unknown
from slu.experiments.models.lenet import LeNet
from slu.experiments.models.mlp import MLP
from slu.experiments.models.resnet import ResNet
from slu.experiments.models.swin import Swin
from slu.experiments.models.van import VisualAttentionNet

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
    """A network of the table with new weights, drawn from torch's random state (see `randomness.seeded`).

    >>> sum(parameter.numel() for parameter in build("mlp").parameters())
    15910
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name]() if outputs is None else MODELS[name](outputs)


__all__ = ["MLP", "MODELS", "LeNet", "ResNet", "Swin", "VisualAttentionNet", "build"]
