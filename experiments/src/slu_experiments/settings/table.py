"""Every setting: a data set, a network, the sets it is judged on and the memory a method may keep.

The paper's five, one for its figure of ghosts, and one of ours that runs in a minute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slu.errors import BudgetError, SettingError, unknown

_COPIES = re.compile(r"([1-9][0-9]*)p")


@dataclass(frozen=True)
class Reported:
    """A number that the paper reports, with its standard deviation over networks; None where it gives none."""

    mean: float
    spread: float | None = None

    def __str__(self) -> str:
        if self.spread is None:
            return f"{self.mean:.2f}"
        # Two digits, or three where the paper has three.
        return f"{self.mean:.2f} ± {f'{self.spread:.3f}'.removesuffix('0')}"


@dataclass(frozen=True)
class Numbers:
    """What a budget means for each method.

    Attributes:
        rank, sketch_size: k and s of SLU.
        copies: Of the parameters: the baselines' rank, and the members of an ensemble.
    """

    rank: int
    sketch_size: int
    copies: int


@dataclass(frozen=True)
class Setting:
    """One block of the paper's table, or one of ours.

    Attributes:
        name: As it is typed.
        title: As it is printed.
        dataset, model: Names in the tables of data sets and of networks.
        likelihood: Of the network's outputs.
        parameters: p.
        mean, std: By which every image is normalized, one number per channel; empty for pixels as they
            are, in [0, 1].
        recipe: Name of the training recipe.
        outside: The families of sets that the network was not trained for; the table's columns.
        budgets: By name, what the paper (or we) took for it.
        accuracy: On the test set, as the paper reports it.
        seeds: Of the networks in the paper.
        subsample: Points of the train set that methods are fitted on, of which a tenth is held back;
            None for all.
        swag_interval: Batches from one iterate of SWAG to the next, as the authors ran it.
        swag_statistics: Batches of which BatchNorm's statistics are computed for every network that SWAG draws; None
            for all.
    """

    name: str
    title: str
    dataset: str
    model: str
    likelihood: str
    parameters: int
    recipe: str
    outside: tuple[str, ...]
    budgets: Mapping[str, Numbers]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    accuracy: Reported | None = None
    seeds: tuple[int, ...] = (1,)
    subsample: int | None = 10_000
    swag_interval: int = 1000
    swag_statistics: int | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def points(self) -> int | None:
        """n of a fit: nine tenths of the subsample, as the authors have it; None for every point."""
        return None if self.subsample is None else 9 * self.subsample // 10

    def numbers(self, budget: str) -> Numbers:
        """What a budget means: the table's row, or for other multiples of p the sketch of the next smaller one.

        Raises:
            BudgetError: Not a whole number of copies, "5p"; or too little for one direction.

        >>> from slu_experiments.settings import SETTINGS
        >>> SETTINGS["fmnist-lenet"].numbers("3p"), SETTINGS["fmnist-lenet"].numbers("5p").rank
        (Numbers(rank=132, sketch_size=1000, copies=3), 222)
        """
        if budget in self.budgets:
            return self.budgets[budget]
        match = _COPIES.fullmatch(budget)
        if match is None:
            raise BudgetError(
                f"the budget {budget!r} is no whole number of copies of the parameters; {self.name} has "
                f"{', '.join(self.budgets)}, others are written like '5p'"
            )
        copies = int(match[1])
        smaller = [each for each in self.budgets.values() if each.copies <= copies]
        size = (smaller or list(self.budgets.values()))[-1 if smaller else 0].sketch_size
        rank = copies * self.parameters // size
        if rank < 1:
            raise BudgetError(f"the budget {budget!r} is too small for one direction of {size:,} numbers; raise it")
        return Numbers(rank, size, copies)


_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

IMAGENET_HELD_OUT = tuple(
    f"imagenet-{name}"
    for name in (
        "carbonara",
        "castle",
        "flamingo",
        "lighter",
        "menu",
        "odometer",
        "parachute",
        "pineapple",
        "triceratops",
        "volcano",
    )
)

_ALL = (
    Setting(
        name="mnist-mlp",
        title="MNIST, MLP",
        dataset="mnist",
        model="mlp",
        likelihood="classification",
        parameters=15_910,
        recipe="mnist-mlp",
        outside=("fmnist", "kmnist", "mnist-rotated"),
        budgets={"3p": Numbers(45, 1000, 3), "10p": Numbers(150, 1000, 10)},
        accuracy=Reported(0.952, 0.001),
        seeds=tuple(range(1, 11)),
    ),
    Setting(
        name="fmnist-lenet",
        title="FashionMNIST, LeNet",
        dataset="fmnist",
        model="lenet",
        likelihood="classification",
        parameters=44_426,
        recipe="fmnist-lenet",
        outside=("mnist", "fmnist-rotated"),
        budgets={"3p": Numbers(132, 1000, 3), "10p": Numbers(440, 1000, 10)},
        accuracy=Reported(0.886, 0.003),
        seeds=tuple(range(1, 11)),
    ),
    Setting(
        name="cifar10-resnet",
        title="CIFAR-10, ResNet",
        dataset="cifar10",
        model="resnet",
        likelihood="classification",
        parameters=272_378,
        recipe="cifar10-resnet",
        outside=("svhn", "cifar100", "cifar10-corrupted"),
        budgets={"3p": Numbers(81, 10_000, 3), "10p": Numbers(50, 50_000, 10)},
        mean=_CIFAR_MEAN,
        std=_CIFAR_STD,
        accuracy=Reported(0.911, 0.003),
        seeds=tuple(range(1, 6)),
        swag_statistics=40,
        notes=("Of CIFAR-10-C the corruptions that the paper reports, at severity 5.",),
    ),
    Setting(
        name="celeba-van",
        title="CelebA, VisualAttentionNet",
        dataset="celeba",
        model="van",
        likelihood="multilabel",
        parameters=3_858_309,
        recipe="celeba-van",
        outside=("food101", "celeba-held-out"),
        budgets={"3p": Numbers(100, 10_000, 3), "10p": Numbers(100, 10_000, 10)},
        accuracy=Reported(0.889, 0.002),
        seeds=(1, 2, 3),
        swag_statistics=40,
        notes=("The paper's SLU takes the same s and k at 3p and 10p: 0.26 p.",),
    ),
    Setting(
        name="imagenet-swin",
        title="ImageNet, SWIN",
        dataset="imagenet",
        model="swin",
        likelihood="classification",
        parameters=196_517_106,
        recipe="imagenet-swin",
        outside=IMAGENET_HELD_OUT,
        budgets={"3p": Numbers(30, 20_000_000, 3)},
        mean=_IMAGENET_MEAN,
        std=_IMAGENET_STD,
        accuracy=Reported(0.672),
        notes=("The paper has no numbers for carbonara and menu, nor for a budget of 10p.",),
    ),
    Setting(
        name="mnist-lenet",
        title="MNIST, LeNet",
        dataset="mnist",
        model="lenet",
        likelihood="classification",
        parameters=44_426,
        recipe="fmnist-lenet",
        outside=("fmnist", "kmnist", "mnist-rotated"),
        budgets={"3p": Numbers(132, 1000, 3), "10p": Numbers(440, 1000, 10)},
        notes=("Of the paper's figure of ghosts; it reports no AUROC.",),
    ),
    Setting(
        name="digits-mlp",
        title="digits, MLP",
        dataset="digits",
        model="digits-mlp",
        likelihood="classification",
        parameters=17_096,
        recipe="digits-mlp",
        outside=("digits-held-out", "digits-rotated"),
        budgets={"3p": Numbers(102, 500, 3), "10p": Numbers(341, 500, 10)},
        subsample=None,
        swag_interval=100,
        notes=("Ours, for a first try: scikit-learn's 8 × 8 digits without 8 and 9. Not in the paper.",),
    ),
)

SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _ALL}
"""By name; a new setting is an entry here."""


def find_setting(name: str) -> Setting:
    """A setting by its name."""
    if name not in SETTINGS:
        raise unknown("setting", name, SETTINGS)
    return SETTINGS[name]


def setting_of(dataset: str, model: str) -> Setting:
    """The setting of a data set and a network.

    Raises:
        SettingError: There is none; the message names what there is.
    """
    fitting = [
        each for each in _ALL if each.dataset == dataset and (each.model == model or each.name == f"{dataset}-{model}")
    ]
    if not fitting:
        pairs = ", ".join(f"{each.dataset} with {each.model}" for each in _ALL)
        raise SettingError(f"there is no setting for {dataset!r} with {model!r}; there are {pairs}")
    return fitting[0]
