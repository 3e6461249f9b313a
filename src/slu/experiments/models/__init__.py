"""The paper's small networks, with its numbers of parameters."""

from slu.experiments.models.lenet import LeNet
from slu.experiments.models.mlp import MLP
from slu.experiments.models.resnet import ResNet

__all__ = ["MLP", "LeNet", "ResNet"]
