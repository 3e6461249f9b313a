"""How each of the paper's networks is trained, as data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn, optim

from slu.errors import SettingError, unknown
from slu_experiments.training.augmentation import Augmentation

OPTIMIZERS: dict[str, Any] = {"adam": optim.Adam, "sgd": optim.SGD}
_DECAY = 0.1  # of the learning rate, at every milestone


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
        optimizer: "adam" or "sgd".
        learning_rate, momentum, weight_decay: Of the optimizer; the momentum is SGD's, the decay
            is added to the gradient (an L2 penalty).
        epochs: Passes over the data.
        milestones: Shares of the epochs after the warm-up at which the learning rate falls to a tenth.
        warmup: Epochs over which the learning rate grows to its value.
        annealed: After the warm-up the learning rate falls to nothing along half a cosine, without milestones.
        batch_size: Points per step.
        drop_last: Leave out the points of an epoch that do not fill a batch.
        clip: Every entry of the gradient is held between -clip and clip; None for no bound.
        augmentation: How images are changed from epoch to epoch; None for not at all.
        channels_last: Keep images and filters with their channels innermost while training: on a CPU a
            tenth to a third faster, and rounded otherwise.
        autocast: Train with torch's autocast to bfloat16, weights and their steps in float32: twice as fast
            where the processor multiplies in bfloat16, and slower where it does not.
        share: The part of a training set that is learned from; the rest is left for validation.
        initial: Weights to begin with: "torch" for those that torch's layers draw, "flax" for those of the library that
            the paper's authors train with (see `as_flax`).
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    epochs: int = 50
    milestones: tuple[float, ...] = ()
    warmup: int = 0
    batch_size: int = 128
    drop_last: bool = False
    clip: float | None = 1.0
    augmentation: Augmentation | None = None
    channels_last: bool = False
    autocast: bool = False
    share: float = 0.9
    initial: str = "torch"
    annealed: bool = False

    def __post_init__(self) -> None:
        if self.initial not in INITIAL:
            raise unknown("initial", self.initial, INITIAL)
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer, OPTIMIZERS)
        if self.momentum and self.optimizer != "sgd":
            raise SettingError(f"momentum is SGD's; {self.optimizer!r} takes none, got {self.momentum}")
        for name in ("epochs", "batch_size"):
            _refuse_unless(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        _refuse_unless("learning_rate", self.learning_rate, 0 < self.learning_rate < math.inf, "positive")
        _refuse_unless("clip", self.clip, self.clip is None or self.clip > 0, "positive, or None")
        _refuse_unless("warmup", self.warmup, self.warmup >= 0, "0 or more epochs")
        _refuse_unless("share", self.share, 0 < self.share <= 1, "in (0, 1]")
        rising = all(0 < each < 1 for each in self.milestones) and list(self.milestones) == sorted(self.milestones)
        _refuse_unless("milestones", self.milestones, rising, "rising shares between 0 and 1")
        _refuse_unless("milestones", self.milestones, not (self.annealed and self.milestones), "none where it anneals")

    def rate(self, epoch: int) -> float:
        """The learning rate in an epoch, counted from 0.

        >>> recipe = Recipe(learning_rate=1.0, epochs=100, milestones=(0.6, 0.85))
        >>> [round(recipe.rate(epoch), 6) for epoch in (0, 59, 60, 84, 85, 99)]
        [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
        """
        if epoch < self.warmup:
            return self.learning_rate * (epoch + 1) / self.warmup
        length = max(1, self.epochs - self.warmup)
        if self.annealed:
            return self.learning_rate * (1 + math.cos(math.pi * (epoch - self.warmup + 0.5) / length)) / 2
        passed = sum(epoch - self.warmup >= round(milestone * length) for milestone in self.milestones)
        return self.learning_rate * _DECAY**passed

    def lasting(self, epochs: int) -> Recipe:
        """The recipe for another number of epochs.

        Of a shorter one that has milestones the plateaus would be too short: the learning rate rises over a fifth of
        the epochs and falls to nothing along half a cosine. SGD's weight decay grows as the epochs shrink, so that
        weights decay about as much in all. Of one or two epochs there is little to anneal.

        >>> short = Recipe("sgd", 0.1, weight_decay=1e-4, epochs=200, milestones=(0.6, 0.85)).lasting(20)
        >>> short.annealed, short.warmup, short.milestones, round(short.weight_decay, 6)
        (True, 4, (), 0.001)
        >>> [round(short.rate(epoch), 3) for epoch in (0, 3, 11, 19)]
        [0.025, 0.1, 0.055, 0.0]
        """
        other = replace(self, epochs=epochs)
        if epochs >= self.epochs or not self.milestones:
            return other
        decay = self.weight_decay * (self.epochs / epochs if self.optimizer == "sgd" else 1)
        return replace(other, milestones=(), warmup=max(1, epochs // 5), annealed=True, weight_decay=decay)

    def begin(self, model: nn.Module) -> nn.Module:
        """A new model with the weights to begin with; those that are not torch's are drawn from its random state."""
        return INITIAL[self.initial](model)

    def prepare(self, model: nn.Module) -> optim.Optimizer:
        """The optimizer of a model's parameters."""
        settings: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self.optimizer == "sgd":
            settings["momentum"] = self.momentum
        return OPTIMIZERS[self.optimizer](model.parameters(), **settings)

    def batches(self, points: int) -> int:
        """Steps of an epoch over so many points."""
        if self.drop_last and points >= self.batch_size:
            return points // self.batch_size
        return -(-points // self.batch_size)

    def plain(self) -> dict[str, Any]:
        """For a header: what JSON gives back unchanged."""
        fields = asdict(self)
        fields["milestones"] = list(self.milestones)
        if self.augmentation is not None:
            fields["augmentation"] = self.augmentation.plain()
        for name, usual in (("autocast", False), ("initial", "torch"), ("annealed", False)):
            if fields[name] == usual:  # as in the headers of networks trained before there was a choice
                del fields[name]
        return fields


def _refuse_unless(name: str, came: object, fine: bool, expected: str) -> None:
    if not fine:
        raise SettingError(f"{name} must be {expected}, got {came!r}")


def as_flax(model: nn.Module) -> nn.Module:
    """Draw the weights of convolutions and linear layers again, from torch's random state, as Flax does by default.

    Biases are zero; weights are normal, cut off at two standard deviations, of variance 1/n for n inputs of a unit.
    Torch's are uniform, of a third of that variance, and so are its biases.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            deviation = module.weight[0].numel() ** -0.5 / _CUT_OFF
            nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def by_autocast(model: nn.Module, inputs: Tensor) -> Tensor:
    """A model's outputs in the type of its weights: by autocast to bfloat16 where gradients are recorded."""
    like = next(model.parameters())
    with torch.autocast(like.device.type, torch.bfloat16, enabled=torch.is_grad_enabled()):
        return model(inputs).to(like.dtype)


INITIAL: dict[str, Callable[[nn.Module], nn.Module]] = {"torch": lambda model: model, "flax": as_flax}

_CUT_OFF = 0.8796256610342398  # the standard deviation of a standard normal number that is cut off at -2 and 2
_FALLING = (0.6, 0.85)

RECIPES: dict[str, Recipe] = {
    "mnist-mlp": Recipe(drop_last=True),
    "fmnist-lenet": Recipe(drop_last=True, channels_last=True, initial="flax"),
    "cifar10-resnet": Recipe(
        optimizer="sgd",
        learning_rate=0.1,
        momentum=0.9,
        weight_decay=1e-4,
        epochs=200,
        milestones=_FALLING,
        drop_last=True,
        augmentation=Augmentation(scale=(0.8, 1.0), ratio=(0.9, 1.1)),
        channels_last=True,
        autocast=True,
    ),
    "celeba-van": Recipe(
        milestones=_FALLING,
        drop_last=True,
        augmentation=Augmentation(scale=(0.7, 1.0), ratio=(0.9, 1.1)),
        channels_last=True,
    ),
    # The paper names neither the decay's strength nor what is done to the images; these are a ResNet's.
    "imagenet-swin": Recipe(
        weight_decay=1e-4,
        epochs=70,
        milestones=_FALLING,
        warmup=10,
        drop_last=True,
        augmentation=Augmentation(scale=(0.7, 1.0), ratio=(0.9, 1.1)),
    ),
    "digits-mlp": Recipe(epochs=60),
}
"""By the name of the setting; the paper's, and one for scikit-learn's digits."""
